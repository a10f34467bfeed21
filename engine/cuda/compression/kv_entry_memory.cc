#include "engine/cuda/compression/kv_entry_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

Result<KvEntryMemory> KvEntryMemory::make(const KvMemory& memory, const LlmSpec& llm,
                                          const cpu::RequestTableShape* shape, uint32_t scratch,
                                          const cpu::KvEntryFormat& format) {
  KvEntryMemory out;
  out.page_tokens_ = memory.page_tokens;
  out.columns_ = shape->groups.heads_per_group();
  out.head_dim_ = llm.head_dim;
  out.pages_gpu_ = memory.pages_gpu;
  out.scratch_ = scratch;
  uint32_t lanes = 1;
  for (uint32_t head = 0; head < shape->groups.heads(); ++head) {
    const uint32_t first = head / llm.kv_heads * llm.kv_heads;
    uint32_t lane = 0;
    for (uint32_t other = first; other < head; ++other)
      lane += shape->groups.column_of(other) == shape->groups.column_of(head);
    out.lanes_.push_back(lane);
    lanes = std::max(lanes, lane + 1);
  }
  out.pages_ = memory.pages_gpu + lanes * scratch;
  const auto make = [&](uint64_t page_bytes, DevicePages* pages) -> Result<void> {
    Result<DevicePages> made = DevicePages::make_packed(page_bytes, 1, out.pages_, memory.pages_host);
    if (!made) return tl::unexpected<Error>(made.error());
    *pages = std::move(*made);
    return {};
  };
  const uint64_t numbers = uint64_t{out.columns_} * out.page_tokens_;
  if (format.format == Format::kBf16) {
    const uint64_t bytes = 2 * numbers * out.head_dim_ * sizeof(__nv_bfloat16);
    if (Result<void> ok = make(bytes, &out.pool_); !ok) return tl::unexpected<Error>(ok.error());
  } else {
    Result<PackedHeads> packed =
        PackedHeads::make(&llm, {format.format, format.group, memory.page_tokens, out.columns_, out.pages_,
                                 memory.pages_host, memory.rows_max});
    if (!packed) return tl::unexpected<Error>(packed.error());
    out.packed_.emplace(std::move(*packed));
  }
  if (Result<void> ok = make(numbers * sizeof(float), &out.scorer_state_); !ok)
    return tl::unexpected<Error>(ok.error());
  const uint64_t bytes = out.pages_ * out.scorer_state_.page_bytes();
  if (Result<void> ok =
          check(cudaMemset(out.scorer_state(), 0, bytes), "cudaMemset", "marks of KV entries", bytes);
      !ok)
    return tl::unexpected<Error>(ok.error());
  return out;
}

uint32_t KvEntryMemory::scratch(uint32_t head, uint32_t index) const {
  KVT_CHECK(index < scratch_);
  return pages_gpu_ + lanes_[head] * scratch_ + index;
}

void KvEntryMemory::poison(PageId page, cudaStream_t stream) const {
  KVT_CHECK(raw(page) < pages_gpu_);
  packed_ ? packed_->poison(page, stream) : pool_.poison(page, stream);
  scorer_state_.poison(page, stream);
}

void KvEntryMemory::copy(PageId source, PageId target, cudaStream_t stream) const {
  const PageId from = stored_page(source), to = stored_page(target);
  packed_ ? packed_->copy(from, to, stream) : pool_.copy(from, to, stream);
  scorer_state_.copy(from, to, stream);
}

}  // namespace kvtwin::cuda
