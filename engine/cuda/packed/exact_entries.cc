#include "engine/cuda/packed/exact_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/packed/staged_entries.h"

namespace kvtwin::cuda {

ExactEntries::ExactEntries(const LlmSpec& llm, uint32_t tokens)
    : tokens_(tokens),
      layers_(llm.layers),
      slot_bytes_(uint64_t{2} * llm.kv_heads * tokens * llm.head_dim * sizeof(__nv_bfloat16)) {
  KVT_CHECK(tokens % kStagedPage == 0);
}

void ExactEntries::reserve(uint32_t slots) {
  if (slots <= slots_) return;
  const uint32_t more = std::max(slots, slots_ + slots_ / 2);
  const auto shape = [&] {
    return fmt::format("{} requests, {} KV entries of {} layers each", more, tokens_, layers_);
  };
  Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, more * slot_bytes_ * layers_,
                                     "exact KV entries of requests", shape());
  if (!made) fail(made.error().text());
  if (slots_ > 0) {
    // One copy per layer, because CUDA accepts strides below 2 GiB.
    for (uint32_t i = 0; i < layers_; ++i) {
      must(cudaMemcpy(made->as<char>(i * more * slot_bytes_), kv_entries_.as<char>(i * slots_ * slot_bytes_),
                      slots_ * slot_bytes_, cudaMemcpyDeviceToDevice),
           "copy of exact KV entries", slots_ * slot_bytes_, shape);
    }
  }
  // Device-to-device copies are asynchronous, and steps run on other streams.
  must(cudaDeviceSynchronize(), "copy of exact KV entries", 0, shape);
  kv_entries_ = std::move(*made);
  slots_ = more;
}

}  // namespace kvtwin::cuda
