// StagedEntries: one layer's KV entries of a step in bf16, by request and position, wherever they are kept
// and in which format. What attention kernels for bf16 pages read when KV is packed: the layer's history is
// unpacked into pages of its own, new rows are written behind it, and what is to be packed is packed from
// there.
//
// Per step: clear(), then for every entry open() and add_rows(), and the spans that say what comes from
// where; then send(). Per layer, on one stream, because all layers share the pages:
//   stage()    rows are rotated and written; exact KV entries come in; what is packed together is gathered;
//   then
//              packing, then unpacking, so that who reads what another request of the step packs finds it
//   attend()   rows read what is staged
//   keep()     what stays exact goes back
//
// Floor of staging a KV entry: what it is packed in, read once, and 4 * head_dim bytes written and read
// again, in place of reading what it is packed in.

#ifndef KVTWIN_ENGINE_CUDA_PACKED_STAGED_ENTRIES_H_
#define KVTWIN_ENGINE_CUDA_PACKED_STAGED_ENTRIES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/kv_format.h"
#include "engine/cuda/device/device_lists.h"
#include "engine/cuda/device/device_pages.h"
#include "engine/cuda/kv_cache.h"
#include "engine/cuda/packed/exact_entries.h"
#include "engine/cuda/row_attention.h"
#include "kernels/quant/convert_entries.h"

namespace kvtwin::cuda {

constexpr uint32_t kStagedPage = 16;  // tokens: what every attention kernel takes

struct KvMemory;
// KV entries that a step unpacks: at most all of the pool. Where decodes read packed pages, only the
// histories of the prompt that a step completes and of the one that it begins are expected, and `each_decode`
// of every decode; a step that needs more takes it then.
uint64_t unpacked_expected(const LlmSpec& llm, const KvMemory& memory, bool decodes_packed,
                           uint32_t each_decode);

// Packed pages of one format.
struct PackedPages {
  Format format{};
  PageShape shape{};
  DevicePages pages{};

  // The KV entry in `slot` of a page, as spans name it.
  uint32_t kv_entry(uint32_t page, uint32_t slot) const { return page * shape.page_tokens + slot; }
};

// What moves in every layer of a step. KV entries of staged pages, of exact KV entries, of packed pages, by
// their numbers.
struct StagedSpans {
  std::vector<KvEntrySpan> from_exact;  // exact -> staged
  std::vector<KvEntrySpan> gathered;    // staged -> staged
  std::vector<KvEntrySpan> packed;      // staged -> packed
  std::vector<KvEntrySpan> unpacked;    // packed -> staged
  std::vector<KvEntrySpan> to_exact;    // staged -> exact

  void clear();
};

class StagedEntries {
 public:
  StagedEntries() = default;
  // `llm` must outlive it. Pages for `kv_entries`; more are taken if a step needs them. `rows`: of one step,
  // at most.
  static Result<StagedEntries> make(const LlmSpec* llm, uint64_t kv_entries, uint32_t rows, bool poison);

  void clear();
  // The first of `kv_entries` KV entries that follow one another.
  uint32_t open(uint32_t kv_entries);
  // Rows of a request from `position` on, `count` of them, whose KV entries are `at` and the ones behind it.
  static void add_rows(const LlmSpec& llm, uint32_t at, uint32_t position, uint32_t count, StepRows* rows);
  // A row without a request, which packs nothing into the pool.
  void add_padding(size_t pool, StepRows* rows);
  // They read `context` KV entries from `base` on, and themselves, each the ones before it and itself: rows
  // [first, first + count).
  void add_reads(uint32_t base, uint32_t first, uint32_t context, uint32_t count, StepRows* rows) const;
  // `size` rows without a request: one decode and, where there is room for it, a chunk.
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows);
  // All is opened: the spans are on their way. Growing waits for the GPU; no room: the process ends.
  void send(const StepStream& on);
  // What stage(), attend() and keep() start depends on how many rows there are, and on nothing else: nothing
  // is staged but rows to be packed, one span each, and no list lies elsewhere than at first.
  bool repeats() const;

  // What these start depends on, whatever is staged: as LayerAttention::repeats().
  void add_to(StepGraphKey* graph_key) const;

  // Spans of the step, by pool; the first pool has what moves between staged and exact KV entries.
  std::vector<StagedSpans>& spans() { return spans_; }

  void plan(const DeviceRows& rows, const StepStream& on) { attention_.plan(rows, pool(), on.stream); }
  // Whether the step keeps exact KV entries.
  bool keeps() const;
  // Starts an operation of a layer: append (staging and packing included), a kernel of attention, or the move
  // of exact KV entries. `pools`: as many as spans(). `exact`: null if nothing is.
  void start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows,
             std::span<const PackedPages> pools, const ExactEntries* exact, cudaStream_t stream);
  // Pages of kStagedPage KV entries, for who reads them otherwise.
  const void* pages() const { return pool(); }

  // Between one pool and staged KV entries, outside of steps: what was opened since clear(), for which pages
  // are taken first. `spans` are on the device.
  void grow_pages();
  void unpack(const PackedPages& pool, uint32_t layer, const KvEntrySpan* spans, uint32_t count,
              cudaStream_t stream) const;
  void pack(const PackedPages& pool, uint32_t layer, const KvEntrySpan* spans, uint32_t count,
            cudaStream_t stream) const;

 private:
  struct SpansAt {
    ListAt<KvEntrySpan> from_exact, gathered, packed, unpacked, to_exact;
  };
  Result<void> allocate(uint64_t kv_entries);
  void stage(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
             std::span<const PackedPages> pools, const ExactEntries* exact, cudaStream_t stream);
  void keep(uint32_t layer, const ExactEntries& exact, cudaStream_t stream);
  __nv_bfloat16* pool() const { return pages_.as<__nv_bfloat16>(); }
  ConvertArgs args(const ListAt<KvEntrySpan>& spans) const;
  void copy(const ListAt<KvEntrySpan>& spans, const __nv_bfloat16* source, __nv_bfloat16* target,
            const char* what, cudaStream_t stream) const;

  const LlmSpec* llm_ = nullptr;
  uint32_t rows_ = 0;
  bool poison_ = false;
  uint64_t kv_entries_ = 0;  // that there are pages for
  uint64_t used_ = 0;
  Buffer pages_;
  RowAttention attention_;
  std::vector<StagedSpans> spans_;
  std::vector<SpansAt> at_;
  DeviceLists upload_;
  const void* lists_at_ = nullptr;  // at first
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_PACKED_STAGED_ENTRIES_H_
