#include "engine/cuda/packed/packed_attention.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/row_attention.h"
#include "kernels/attention/attention_decode.h"

namespace kvtwin::cuda {
std::optional<PackedPart> PackedAttention::part_of(Format format) {
  if (format == Format::kInt2) return kPartInt2;
  if (format == Format::kInt4) return kPartInt4;
  if (format == Format::kFp8 || format == Format::kFp4) return kPartHighPrecision;
  return std::nullopt;
}

Result<PackedAttention> PackedAttention::make(const LlmSpec& llm, std::span<const PackedPages> pools,
                                              uint32_t rows, uint32_t pages, bool staged) {
  PackedAttention out;
  int sms = 0;
  if (Result<void> ok = check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0),
                              "cudaDeviceGetAttribute", "multiprocessors");
      !ok)
    return tl::unexpected<Error>(ok.error());
  PackedDecodeShape shape;
  shape.layout = staged ? PackedLayout::kKivi : PackedLayout::kRows;
  shape.head_dim = llm.head_dim, shape.group = llm.query_heads / llm.kv_heads;
  shape.heads_per_page = llm.kv_heads, shape.ctas = static_cast<uint32_t>(sms);
  for (uint32_t& page : shape.page_tokens) page = 128;  // of parts without entries
  for (const PackedPages& pool : pools) {
    const std::optional<PackedPart> part = part_of(pool.format);
    if (!part) return out;
    shape.page_tokens[*part] = pool.shape.page_tokens;
    if (*part != kPartHighPrecision) shape.scale_group = pool.shape.group;
    if (pool.format == Format::kFp4) shape.layout = PackedLayout::kFp4;
  }
  if (staged) shape.page_tokens[kPartHighPrecision] = kStagedPage;
  if (!packed_shape_is_possible(shape)) return out;
  shape.sequences = rows * llm.kv_heads;
  const struct {
    Buffer* buffer;
    uint64_t bytes;
    const char* what;
  } rows_of[] = {{&out.plan_, packed_plan_bytes(shape), "the plan of packed attention"},
                 {&out.workspace_, packed_workspace_bytes(shape), "packed attention"}};
  for (const auto& row : rows_of) {
    Result<Buffer> made =
        Buffer::make(Buffer::Kind::kDevice, row.bytes, row.what, fmt::format("{} rows", rows));
    if (!made) {
      made.error().hint = "give fewer: --set=limits.step_tokens_max=N";
      return tl::unexpected<Error>(made.error());
    }
    *row.buffer = std::move(*made);
  }
  out.upload_.reserve(uint64_t{shape.sequences} * sizeof(PackedSequence) +
                      (uint64_t{pages} + (staged ? 32 : 2) * rows) * sizeof(uint32_t) + 1024);
  out.lists_at_ = out.upload_.base();
  out.shape_ = shape;
  out.scale_ = 1 / std::sqrt(static_cast<float>(llm.head_dim));
  out.query_heads_ = llm.query_heads, out.kv_heads_ = llm.kv_heads;
  return out;
}

void PackedAttention::clear() {
  sequences_.clear();
  pages_.clear();
}

void PackedAttention::add(uint32_t row, std::span<const Part> parts) {
  PackedSequence sequence;
  for (const Part& part : parts) {
    sequence.table[part.part] = static_cast<uint32_t>(pages_.size());
    sequence.tokens[part.part] = part.tokens;
    pages_.insert(pages_.end(), part.pages.begin(), part.pages.end());
  }
  for (uint32_t head = 0; head < kv_heads_; ++head) {
    sequence.q_row = row * query_heads_ + head * shape_.group;
    sequence.column = head;
    sequences_.push_back(sequence);
  }
}

PackedDecodeArgs PackedAttention::args() const {
  PackedDecodeArgs out;
  out.pages = upload_.at(pages_at_);
  out.table = upload_.at(sequences_at_);
  out.scale = scale_;
  out.plan = plan_.as<void>(), out.workspace = workspace_.as<void>();
  return out;
}

void PackedAttention::send(const StepStream& on) {
  if (sequences_.empty()) return;
  upload_.clear();
  sequences_at_ = upload_.add(sequences_), pages_at_ = upload_.add(pages_);
  on.timer->begin(Operation::kUpload);
  upload_.send(on.stream);
}

void PackedAttention::plan(const StepStream& on) {
  if (sequences_.empty()) return;
  const auto shape = [&] { return fmt::format("{} sequences", sequences_.size()); };
  must(cudaMemsetAsync(workspace_.as<void>(), 0, decode_counter_bytes(sequences_.size()), on.stream),
       "counters of packed attention", decode_counter_bytes(sequences_.size()), shape);
  PackedDecodeShape now = shape_;
  now.sequences = static_cast<uint32_t>(sequences_.size());
  must(plan_packed_decode(now, args(), on.stream), "plan_packed_decode", 0, shape);
}

void PackedAttention::attend(uint32_t layer, const LayerRows& tensors, std::span<const PackedPages> pools,
                             cudaStream_t stream, const void* staged) {
  PackedDecodeArgs request = args();
  for (const PackedPages& pool : pools) request.pool[*part_of(pool.format)] = pool.pages.packed_layer(layer);
  if (staged != nullptr) request.pool[kPartHighPrecision] = staged;
  request.q = tensors.q, request.out = tensors.out;
  PackedDecodeShape now = shape_;
  now.sequences = static_cast<uint32_t>(sequences_.size());
  must(packed_decode(now, request, stream), "packed_decode", 0,
       [&] { return fmt::format("{} sequences, head_dim {}", sequences_.size(), shape_.head_dim); });
}

void add_packed_padding(uint32_t size, size_t pool, StagedEntries* staged, PackedAttention* fused,
                        StepRows* rows) {
  for (auto row = static_cast<uint32_t>(rows->positions.size()); row < size; ++row) {
    staged->add_padding(pool, rows);
    fused->add(row, {});
  }
}

void fill_up_packed(uint32_t size, size_t pool, StagedEntries* staged, PackedAttention* fused,
                    const StepStream& on, StepRows* rows) {
  staged->clear();
  fused->clear();
  add_packed_padding(size, pool, staged, fused, rows);
  staged->send(on);
  fused->send(on);
}

}  // namespace kvtwin::cuda
