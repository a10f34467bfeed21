// RetainedPages: Quest among the retained pages (docs/design/methods/freekv.md#page-scores,
// docs/design/methods/composition.md#pairs) of packed KV entries. A decode whose head has more pages than the
// budget reads the first ones, the last ones, and the best of the others by summaries of their keys. It is
// engine/cpu/compression/compressed_choice.cc with choices on the device (kernels/select/page_choice.h: each
// head is a row of one KV head, and blocks are its pages).
//
//   summaries  [pages ++ host][columns][high, low][head_dim] in bf16, of full pages whose KV entries no
//   longer
//              move
//   tails      [requests][heads][pages of a tail] in bf16: exact KV entries, from the first page without a
//   summary on.
//              During a prompt the next compression may move its window; a tail holds at most this window and
//              the page that is being filled.
// The decodes of a step copy their rows to the tails; full pages are summarised there, before any choice. A
// compression copies the tail to the dequantized pages, moves the retained entries there (exact), summarises
// pages that will not move again, and stores the rest as the new tail.

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_RETAINED_PAGES_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_RETAINED_PAGES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/common/retrieval/resident_request.h"
#include "engine/cuda/packed/packed_heads.h"
#include "kernels/cache_ops/page_moves.h"
#include "kernels/select/page_choice.h"

namespace kvtwin::cuda {

class RetainedPages {
 public:
  struct Shape {
    uint32_t pages = 0, pages_host = 0, columns = 1;
    uint32_t heads = 0;         // layers * kv_heads
    uint32_t tail_entries = 0;  // that a cut may move, at most
  };
  // Of a request.
  struct Tail {
    uint32_t slot = UINT32_MAX;
    std::vector<uint32_t> first;  // by head: its first KV entry, the first of a page
  };
  // One head of a request in a step.
  struct Head {
    uint32_t head = 0;
    std::span<const PageId> pages;  // of its group
    uint32_t column = 0;
    uint32_t dequantized = 0;  // the wide KV entry of its KV entry 0
  };

  // `llm` must outlive it. Fails if there is not enough memory.
  static Result<std::unique_ptr<RetainedPages>> make(const LlmSpec* llm, const RetrievalSpec& spec,
                                                     const Shape& shape);

  // Call when a request begins (also after a preemption), and when it has ended.
  void begin(Tail* tail);
  void end(const Tail& tail) { free_slots_.push_back(tail.slot); }
  // `target` has the summaries of `source`.
  void copy_page(PageId source, PageId target, cudaStream_t stream) const {
    summaries_.copy(source, target, stream);
  }

  // ---- a step's lists, layer by layer
  void clear();
  void begin_layer() { layers_.push_back({}); }
  // Adds decoded KV entry `kv_entry`.
  void add_decode(const Head& head, uint32_t kv_entry, Tail* tail);
  // Adds a compression. Before it the head has `past` KV entries, of which those from `first` on may move;
  // after it `kv_entries`, of which the first `final` do not move again. `move` lists its retained rows.
  void add_cut(const Head& head, const CompactHead& move, uint32_t past, uint32_t kv_entries, uint32_t final,
               Tail* tail);
  // Whether a decode that reads `kv_entries` KV entries chooses pages.
  bool chooses(uint32_t layer, uint32_t kv_entries) const;
  // Appends its page table to *tables, with a gap that the device fills.
  void add_choice(const Head& head, uint32_t row, uint32_t kv_entries, PackedPart part,
                  std::vector<uint32_t>* tables);
  void add_to(DeviceLists* lists);

  // ---- launches of a layer; `tables` is device memory
  void keep_rows(uint32_t layer, const DeviceLists& lists, const PackedHeads& heads,
                 cudaStream_t stream) const;
  void choose(uint32_t layer, const DeviceLists& lists, uint32_t* tables, const __nv_bfloat16* q,
              cudaStream_t stream);
  void attend(uint32_t layer, const DeviceLists& lists, const uint32_t* tables, const PackedHeads& heads,
              const LayerRows& tensors, cudaStream_t stream) const;
  // Launched after the selection of the retained rows.
  void cut(uint32_t layer, const DeviceLists& lists, const PackedHeads& heads, const uint32_t* retained,
           cudaStream_t stream) const;

  uint32_t heads_that_chose(uint32_t layer) const { return layers_[layer].choices; }
  uint32_t selectable() const { return budget_.selectable; }

 private:
  struct Layer {
    uint32_t rows = 0, sealed = 0, overlays = 0, moves = 0, summaries = 0, saves = 0, choices = 0;  // counts
    uint32_t candidates = 0;                                                                        // maximum
  };
  RetainedPages(const LlmSpec* llm, const RetrievalSpec& spec, const Shape& shape)
      : llm_(*llm), spec_(spec), shape_(shape), budget_(spec, kDequantizedPage) {}
  uint32_t tail_entry(const Tail& tail, uint32_t head, uint32_t kv_entry) const;
  void add_spans(uint32_t head, uint32_t from, uint32_t to, uint32_t dequantized, bool to_tail,
                 const Tail& tail, std::vector<KvEntrySpan>* spans) const;
  uint32_t block(const Head& head, uint32_t page) const {
    return raw(head.pages[page]) * shape_.columns + head.column;
  }
  void grow_tails();
  template <typename T>
  const T* part(const DeviceLists& lists, const ListAt<T>& at, uint32_t Layer::*count, uint32_t layer) const;
  void copy(const KvEntrySpan* spans, uint32_t count, const __nv_bfloat16* source, __nv_bfloat16* target,
            cudaStream_t stream) const;
  void summarise(const SummaryPage* pages, uint32_t count, const __nv_bfloat16* pool,
                 cudaStream_t stream) const;

  const LlmSpec& llm_;
  const RetrievalSpec spec_;
  const Shape shape_;
  const cpu::ResidentShape budget_;
  uint32_t tail_pages_ = 0, slots_ = 0, room_ = 0;  // room_: slots with memory
  std::vector<uint32_t> free_slots_;
  DevicePages summaries_;
  Buffer tails_, scores_;
  // Lists of the current step, layer by layer.
  std::vector<Layer> layers_;
  std::vector<KvEntrySpan> rows_, overlays_, saves_;
  std::vector<SummaryPage> sealed_, of_cuts_;
  std::vector<CompactHead> moves_;
  std::vector<ChoiceRow> choices_;
  std::vector<PackedSequence> reads_;
  struct {
    ListAt<KvEntrySpan> rows, overlays, saves;
    ListAt<SummaryPage> sealed, of_cuts;
    ListAt<CompactHead> moves;
    ListAt<ChoiceRow> choices;
    ListAt<PackedSequence> reads;
  } at_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_RETAINED_PAGES_H_
