// KvEntryMemory: KV entries, bf16 or packed (packed_heads.h), where pages belong to head groups, one number
// besides of each (its scorer state), and scratch pages after them, for rows that have no page yet. Pages of
// the host tier are in pinned memory and have the same parts.
//
//   pool   [pages ++ scratch ++ host][columns][keys, values][page_tokens][head_dim]   (kv_block.cuh)
//   state  [pages ++ scratch ++ host][columns][page_tokens]
// All layers are in one pool: a head's column says where it is (docs/design/methods/tangram.md#ragged-pages).
// Scratch is one layer deep: heads of one layer that share a column have scratch pages of their own, the next
// layer uses them again. Packed: packed_heads.h has such pages, scratch among them; scorer state is as here.

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_KV_ENTRY_MEMORY_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_KV_ENTRY_MEMORY_H_

#include <optional>
#include <vector>

#include "engine/common/request_table.h"
#include "engine/cpu/compression/kv_entry_store.h"
#include "engine/cuda/caches.h"
#include "engine/cuda/device/device_pages.h"
#include "engine/cuda/packed/packed_heads.h"
#include "kernels/common/kv_entry_heads.h"

namespace kvtwin::cuda {

class KvEntryMemory {
 public:
  KvEntryMemory() = default;
  // `llm`, `shape` must outlive it. `scratch`: scratch pages of one lane. Errors: no room for that many
  // pages.
  static Result<KvEntryMemory> make(const KvMemory& memory, const LlmSpec& llm,
                                    const cpu::RequestTableShape* shape, uint32_t scratch,
                                    const cpu::KvEntryFormat& format = {});

  uint32_t columns() const { return columns_; }
  uint32_t pages() const { return pages_; }  // on the GPU, scratch among them
  bool packed() const { return packed_.has_value(); }
  PackedHeads& packed_heads() { return *packed_; }
  const PackedHeads& packed_heads() const { return *packed_; }
  // What rows are written to and read from: packed, the wide KV entries of a layer.
  __nv_bfloat16* pool() const { return packed_ ? packed_->pool() : pool_.layer(0); }
  float* scorer_state() const { return reinterpret_cast<float*>(scorer_state_.packed_layer(0)); }
  // What is read of keys and values: packed, wide KV entries, which have tables of their own.
  KvEntryPool kv_entries(const uint32_t* tables, bool listed) const {
    return packed_ ? packed_->dequantized() : stored(tables, listed);
  }
  // As KV entries and scorer state lie in pages; packed, only where they are.
  KvEntryPool stored(const uint32_t* tables, bool listed) const {
    return {pool_.layer(0), tables, page_tokens_, columns_, head_dim_, listed};
  }
  // Scratch page `index` of the head's lane.
  uint32_t scratch(uint32_t head, uint32_t index) const;
  uint32_t lane_of(uint32_t head) const { return lanes_[head]; }
  uint32_t scratch_pages() const { return scratch_; }

  // `target` becomes what `source` is, scorer state included. Either may be of the host tier.
  void copy(PageId source, PageId target, cudaStream_t stream) const;
  // Every value becomes NaN. REQUIRES: a page of the GPU.
  void poison(PageId page, cudaStream_t stream) const;

 private:
  // The host's pages come after the scratch pages.
  PageId stored_page(PageId page) const {
    return raw(page) < pages_gpu_ ? page : PageId{raw(page) + pages_ - pages_gpu_};
  }

  DevicePages pool_, scorer_state_;    // as one layer
  std::optional<PackedHeads> packed_;  // then there is no pool_
  std::vector<uint32_t> lanes_;        // by head
  uint32_t page_tokens_ = 0, columns_ = 0, head_dim_ = 0, pages_gpu_ = 0, pages_ = 0, scratch_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_KV_ENTRY_MEMORY_H_
