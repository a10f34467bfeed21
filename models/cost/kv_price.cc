#include "models/cost/kv_price.h"

#include <algorithm>

namespace kvtwin {

double kv_entry_bytes(Format format, const PageShape& shape) {
  return static_cast<double>(page_bytes(format, shape)) / shape.page_tokens;
}

TensorFormat kv_tensor_format(Format format, const PageShape& shape) {
  const uint32_t group = std::min(shape.group, shape.head_dim);
  switch (format) {
    case Format::kFp8:
      return {NumberFormat::kFp8};
    case Format::kInt4:
      return {NumberFormat::kInt4, group, 16, 16};
    case Format::kInt2:
      return {NumberFormat::kInt2, group, 16, 16};
    case Format::kFp4:
      return {NumberFormat::kMxfp4, kFp4Block, 8, 0};
    case Format::kBf16:
      break;
  }
  return {NumberFormat::kBf16};
}

uint64_t pool_page_bytes(const LlmSpec& llm, uint32_t tp, Format format, const PageShape& shape) {
  return page_bytes(format, shape) * llm.layers * llm.kv_heads_per_gpu(tp);
}

double read_rate_factor(NumberFormat format) {
  constexpr double kBf16Reached = 0.98;  // XQA sm90, page 32
  switch (format) {
    case NumberFormat::kFp8:
    case NumberFormat::kInt8:
      return 0.95 / kBf16Reached;  // XQA sm90, E4M3
    case NumberFormat::kInt4:
    case NumberFormat::kMxfp4:
      return 0.89 / kBf16Reached;  // K4V4 probe; fp4 unpacks as many bits
    case NumberFormat::kInt2:
      return 0.80 / kBf16Reached;  // K2V2 probe: bound by its ALU work
    case NumberFormat::kBf16:
      break;
  }
  return 1;
}

}  // namespace kvtwin
