// Addresses of the rows of a KvEntryHead.

#ifndef KVTWIN_KERNELS_COMMON_KV_ENTRY_HEADS_CUH_
#define KVTWIN_KERNELS_COMMON_KV_ENTRY_HEADS_CUH_

#include "kernels/common/bf16_chunk.cuh"
#include "kernels/common/kv_block.cuh"
#include "kernels/common/kv_entry_heads.h"

namespace kvtwin::device {

struct KvEntryPlace {
  uint32_t block = 0;
  uint32_t slot = 0;
};

__device__ inline KvEntryPlace place_of(const KvEntryPool& kv_entries, const KvEntryHead& head,
                                        uint32_t row) {
  const uint32_t kv_entry = head.first + row;
  uint32_t page, slot;
  if (kv_entries.listed) {
    const uint32_t id = __ldg(kv_entries.pages + head.table + kv_entry);
    page = id / kv_entries.page_tokens, slot = id % kv_entries.page_tokens;
  } else {
    page = __ldg(kv_entries.pages + head.table + kv_entry / kv_entries.page_tokens),
    slot = kv_entry % kv_entries.page_tokens;
  }
  return {page * kv_entries.heads_per_page + head.column, slot};
}

// One chunk of a key; the same chunk of the value is page_tokens * head_dim numbers further.
template <int kDim>
__device__ const uint4* key_chunk(const KvEntryPool& kv_entries, KvEntryPlace place, uint32_t chunk) {
  const KvBlockShape block{kv_entries.page_tokens, kDim};
  return reinterpret_cast<const uint4*>(kv_entries.pool + size_t{place.block} * block.numbers() +
                                        block.at(place.slot, 8 * chunk));
}

// Index of a KV entry in the pool of scorer state (scorer_state.h): one number per slot.
__device__ inline size_t state_index_of(const KvEntryPool& kv_entries, KvEntryPlace place) {
  return size_t{place.block} * kv_entries.page_tokens + place.slot;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_COMMON_KV_ENTRY_HEADS_CUH_
