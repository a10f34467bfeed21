#include "engine/cuda/exact_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/cuda_check.h"
#include "engine/cuda/staged_cells.h"

namespace kvtwin::cuda {

ExactCells::ExactCells(const LlmSpec& llm, uint32_t tokens)
    : tokens_(tokens),
      layers_(llm.layers),
      slot_bytes_(uint64_t{2} * llm.kv_heads * tokens * llm.head_dim * sizeof(__nv_bfloat16)) {
  KVT_CHECK(tokens % kStagedPage == 0);
}

void ExactCells::reserve(uint32_t slots) {
  if (slots <= slots_) return;
  const uint32_t more = std::max(slots, slots_ + slots_ / 2);
  const auto shape = [&] {
    return fmt::format("{} calls, {} cells of {} layers each", more, tokens_, layers_);
  };
  Result<Buffer> made =
      Buffer::make(Buffer::Kind::kDevice, more * slot_bytes_ * layers_, "exact cells of calls", shape());
  if (!made) fail(made.error().text());
  if (slots_ > 0) {
    // In pieces, because CUDA takes strides below 2 GiB.
    for (uint32_t i = 0; i < layers_; ++i) {
      must(cudaMemcpy(made->as<char>(i * more * slot_bytes_), cells_.as<char>(i * slots_ * slot_bytes_),
                      slots_ * slot_bytes_, cudaMemcpyDeviceToDevice),
           "copy of exact cells", slots_ * slot_bytes_, shape);
    }
  }
  // Copies within the GPU are not waited for, and steps run on streams of their own.
  must(cudaDeviceSynchronize(), "copy of exact cells", 0, shape);
  cells_ = std::move(*made);
  slots_ = more;
}

}  // namespace kvtwin::cuda
