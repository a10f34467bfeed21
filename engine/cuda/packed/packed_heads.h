// PackedHeads: packed KV entries where pages belong to head groups, and one layer of them in bf16.
//
//   packed  [pages ++ scratch ++ host][columns][page_bytes(format)]   as KvEntryMemory numbers pages
//   wide    [kDequantizedPage KV entries][one head] and so on                  of the layer at hand
// A KV entry is packed once, when it is written, and moves as bytes (compact_packed.h). What reads bf16
// (attention of chunks, scorers) reads the dequantized pages: a range of consecutive KV entries for
// every entry and head, in order of KV entries, so that tables are always i -> i, whatever dropped slots the
// packed pages have. Layers follow one another on the stream, and use them in turn.
//
// Decodes read packed pages as they are, through tables of heads' own, where packed_decode takes them.
//
// Memory: what the format takes, and one layer of the requests of a step in bf16.

#ifndef KVTWIN_ENGINE_CUDA_PACKED_PACKED_HEADS_H_
#define KVTWIN_ENGINE_CUDA_PACKED_PACKED_HEADS_H_

#include <cstdint>
#include <vector>

#include "engine/base/kv_format.h"
#include "engine/cuda/device/device_lists.h"
#include "engine/cuda/device/device_pages.h"
#include "engine/cuda/kv_cache.h"
#include "kernels/cache_ops/compact_packed.h"
#include "kernels/common/kv_entry_heads.h"
#include "kernels/packed/packed_decode.h"
#include "kernels/quant/convert_entries.h"

namespace kvtwin::cuda {

constexpr uint32_t kDequantizedPage = 16;  // tokens: what every attention kernel takes

struct PackedHeadsShape {
  Format format = Format::kInt4;  // of those that pack KV entry after KV entry
  uint32_t group = 32;
  uint32_t page_tokens = 16, columns = 1;
  uint32_t pages = 0, pages_host = 0;  // those of the host tier follow
  uint32_t rows = 0;                   // of one step, at most
};

class PackedHeads {
 public:
  PackedHeads() = default;
  // `llm` must outlive it. Wrong: no room.
  static Result<PackedHeads> make(const LlmSpec* llm, const PackedHeadsShape& shape);

  // ---- wide KV entries, numbered from 0 in every layer
  void begin_layer() { used_ = 0; }
  // The first of `kv_entries` that follow one another, at the beginning of a page.
  uint32_t open(uint32_t kv_entries);
  static AppendSlot slot(uint32_t kv_entry) {
    return {kv_entry / kDequantizedPage, kv_entry % kDequantizedPage};
  }
  // Of KV entries that follow one another from `kv_entry` on: where their pages, and where they, stand in
  // iota().
  static uint32_t table(uint32_t kv_entry) { return kv_entry / kDequantizedPage; }
  const uint32_t* iota() const { return iota_.as<uint32_t>(); }
  KvEntryPool dequantized() const { return {pool(), iota(), kDequantizedPage, 1, llm_->head_dim, false}; }
  __nv_bfloat16* pool() const { return dequantized_.as<__nv_bfloat16>(); }
  // All layers' were opened: room for the largest. True: pages lie elsewhere now, and there are more.
  bool grow_dequantized();
  uint32_t dequantized_pages() const { return static_cast<uint32_t>(capacity_ / kDequantizedPage); }

  // ---- between the two: spans name KV entries as block * page_tokens + slot, and wide KV entries. On the
  // device.
  void pack(const KvEntrySpan* spans, uint32_t count, cudaStream_t stream) const;
  void unpack(const KvEntrySpan* spans, uint32_t count, cudaStream_t stream) const;
  // `scorer_state` may be null.
  void move(const uint32_t* tables, float* scorer_state, const CompactHead* heads, const uint32_t* retained,
            uint32_t count, cudaStream_t stream) const;
  void poison(PageId page, cudaStream_t stream) const { packed_.poison(page, stream); }
  void copy(PageId source, PageId target, cudaStream_t stream) const { packed_.copy(source, target, stream); }
  void poison_dequantized(cudaStream_t stream) const;

  // ---- decodes that read packed pages
  bool fused() const { return decode_.sequences > 0; }
  static bool fuses(const LlmSpec& llm, const PackedHeadsShape& shape);
  PackedPart part() const;
  // Tables name pages of `heads_per_page` heads: 1, blocks.
  void attend(const uint32_t* pages, const PackedSequence* table, uint32_t count, uint32_t heads_per_page,
              const LayerRows& tensors, cudaStream_t stream) const;
  uint32_t columns() const { return shape_.columns; }

 private:
  Result<void> allocate_dequantized(uint64_t kv_entries);
  Result<void> make_decodes();
  ConvertArgs convert(const KvEntrySpan* spans, uint32_t count) const;

  const LlmSpec* llm_ = nullptr;
  PackedHeadsShape shape_;
  DevicePages packed_;
  Buffer dequantized_, iota_;
  uint64_t used_ = 0, most_ = 0, capacity_ = 0;  // KV entries
  PackedDecodeShape decode_;                     // sequences: the most of a layer; 0: there is no such kernel
  Buffer plan_, workspace_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_PACKED_PACKED_HEADS_H_
