// RetrievedCache keeps all KV of a request and reads some of it, as cpu::RetrievedCache does: Quest, whose
// pages stay on the GPU, and ArkVale and FreeKV, whose pages lie on the host and are recalled into the slots
// of the request's resident pages (engine/common/retrieval/resident_request.h). What is read, chosen and
// reported is what that header says; here is what differs.
//
// Nothing of a choice comes to the host while a step runs, unless pages are recalled by copies
// (copied_recall.h): then the host waits for the choices of every layer. Per layer that chooses, on the
// compute stream:
//   append, summaries of pages that are full now, comparison of the query with the one before, which is
//   replaced, scores, choice and recall of the heads that cannot wait (FreeKV: whose query turned),
//   attention;
// on the select stream: scores of the other heads beside attention, and their choice behind it; on the recall
// stream, behind that choice: their recall; on the offload stream, behind summaries: full pages to the host.
// The edges of docs/design/methods/freekv.md#recall, and where they are:
//   scores of layer l for the next step behind its query     event queried[l]
//   choice of layer l behind attention of layer l            event attended[l]
//   recall of layer l behind that choice                     event chosen[l]
//   layer l of the next step behind that recall              event recalled[l]
//   pages to the host behind what fills them                 event sealed[l]
//   later writes and recalls of them wait for                event offloaded, awaited as the next step begins
// Steps of decodes alone are replayed (step_graphs.h): compute is one graph, select another, and recall a
// third, which may still run when the next step begins. Pages to the host are in none: which ones, changes
// from step to step. The host starts their copies behind the replay, each layer's behind what the replay
// records.
//
// A request that ends, or is preempted, is waited for on the recall stream before its slots are anybody
// else's.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_RETRIEVED_CACHE_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_RETRIEVED_CACHE_H_

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine/common/retrieval/resident_request.h"
#include "engine/cuda/device/device_lists.h"
#include "engine/cuda/device/device_pages.h"
#include "engine/cuda/device/device_tables.h"
#include "engine/cuda/kv_cache.h"
#include "engine/cuda/retrieval/copied_recall.h"
#include "engine/cuda/retrieval/dense_layers.h"
#include "engine/cuda/retrieval/ordered_streams.h"
#include "engine/cuda/retrieval/retrieval_memory.h"
#include "engine/cuda/retrieval/retrieved.h"
#include "kernels/cache_ops/page_moves.h"
#include "kernels/common/kv_entry_heads.h"

namespace kvtwin::cuda {

class RetrievedCache final : public KvCache, private SideStreams {
 public:
  // As make_retrieved().
  static Result<OwnedCache> make(const KvMemory& memory, const LlmSpec& llm, const RetrievedOptions& options);
  ~RetrievedCache() override;

  void force_outcomes(const DataOutcomes* given) override { given_ = given; }
  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
             const StepStream& on, StepRows* rows) override;
  void plan(const DeviceRows& rows, const StepStream& on) override;
  void attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
              const StepStream& on) override;
  StepListSpec listed(const DeviceRows& rows) const override;
  // Steps of decodes alone.
  bool repeats(StepGraphKey* graph_key) const override;
  SideStreams* side_streams() override { return this; }
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           const StepStream& on, DataOutcomes* values) override;
  void notify(const Command& command) override;
  void copy(PageId source, PageId target, cudaStream_t stream) override;
  void copy_all(std::span<const PageId> source, std::span<const PageId> target, cudaStream_t stream) override;
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows) override;
  // Of steps of decodes: whether one of them completes a page, and whether one chooses pages.
  uint32_t padded_forms() const override { return copied_ == nullptr ? 4 : 0; }
  void fill_up(uint32_t form, uint32_t size, const StepStream& on, StepRows* rows) override;

  // A prompt that another cache computed and compressed, whose last row has just run: what is left of it,
  // equally many KV entries in every head. `gpu` and `host_copies` are the request's pages; those that what
  // is left does not fill have no owner. Three requests (retrieved_retained.cc): expect() before the step's
  // lists are sent, keep_query() in every layer, take_over() when its rows went through all layers; it waits
  // for what it starts. REQUIRES: resident pages.
  struct RetainedHead {
    std::span<const PageId> pages;  // of the pool that its KV entries are in, in order
    uint32_t column = 0;
  };
  struct RetainedPrompt {
    RequestId request{};
    uint32_t tokens = 0, kv_entries = 0;
    std::span<const PageId> gpu, host_copies;
    std::vector<RetainedHead> heads;  // layer * kv_heads + head
  };
  void expect(RequestId request);
  // q: the last row's, rotated, [query_heads][head_dim].
  void keep_query(uint32_t layer, RequestId request, const __nv_bfloat16* q, cudaStream_t stream);
  // `from`: the pool that the KV entries are in.
  void take_over(std::span<const RetainedPrompt> prompts, const KvEntryPool& from, const StepStream& on);

 private:
  struct Request {
    std::vector<uint32_t> pages;        // of the GPU: by position, then the resident pages'
    std::vector<uint32_t> host_copies;  // host pages, as the address space counts them, by position
    std::vector<uint32_t> resident;     // numbers of dense layers' pages, by position
    // What it chooses from, and where to: of host_copies (beside no host: pages), and of pages.
    DeviceTables::Table owners{}, slots{};
    uint32_t state = 0;        // its number in RetrievalMemory
    uint32_t dropped = 0;      // KV entries that were dropped: KV entry i is the i-th that is left
    bool in_resident = false;  // its prompt is complete
    bool preempted = false;
    bool filled = false;  // its slots were filled when its prompt was complete
    bool chosen = false;  // a step has chosen pages
  };
  static constexpr uint64_t kFetchHeader = 16;  // bytes before a list of fetched_: how many moves follow
  // A page that the step at hand fills up.
  struct Sealed {
    uint32_t page = 0, owner = 0;
  };
  // Where the step's lists lie in an upload.
  struct Lists {
    ListAt<ChoiceRow> choices;
    ListAt<QueryRetained> retained;
    ListAt<kernels::HeadRecall> forced_outcome;  // [layers that choose][choices][kv_heads], or none
    ListAt<SummaryPage> summaries;  // in steps of decodes alone: none, or one for each row and head
    ListAt<uint32_t> staged;
  };

  RetrievedCache(const KvMemory& memory, const LlmSpec& llm, const RetrievedOptions& options);
  Result<void> allocate();

  std::vector<cudaStream_t> streams() const override;
  void capturing(Capture now) override { order_->capturing(now); }
  bool watched() const override { return order_->watched(); }
  void launched() override;
  uint32_t pages_of(uint32_t tokens) const { return div_ceil(tokens, memory_.page_tokens); }
  bool dense(uint32_t layer) const { return layer < spec_.layers_dense; }
  // Heads may choose for the next step.
  bool ahead() const { return speculates(kind_, spec_.speculation); }
  bool resident() const { return offloaded_ && spec_.layers_dense > 0; }
  uint32_t chooser(uint32_t layer) const { return layer - spec_.layers_dense; }
  HostPool host_layer(uint32_t layer) const;

  // retrieved_lists.cc: what the rows of a step are
  void take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream);
  void begin_with(const PrefixHit& prefix_hit);
  Request& new_request(RequestId id);
  void add_entry(const PlanEntry& entry, StepRows* rows);
  void pad(uint32_t size, StepRows* rows);
  void add_choice(Request* request, uint32_t row, uint32_t kv_entry, StepRows* rows);
  ChoiceRow choice_of(Request* request, uint32_t pages);
  void free_tables(Request* request);
  void deal_recalls();
  void clear_lists();
  void reserve_rows();
  void send_lists(const StepStream& on);
  void pack(const std::vector<QueryRetained>& retained, DeviceLists* upload, Lists* at);

  // retrieved_attend.cc: what one layer starts
  StepListSpec sealing() const;
  void start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows);
  void start_sealing(const ListedOperation& one);
  void offload(uint32_t layer);
  ChoiceArgs choice_args(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows) const;
  void compare(uint32_t layer, const ChoiceArgs& args, cudaStream_t stream);
  void score(const ListedOperation& one, const ChoiceArgs& args);
  void choose(const ListedOperation& one, const ChoiceArgs& args);
  void recall(const ListedOperation& one, const ChoiceArgs& args);
  bool defers(const ListedOperation& one) const { return copied_ && one.stream == StreamKind::kRecall; }
  void recall_deferred();
  void enter_residents(const StepStream& on);
  void add_entering();
  void copy_window(cudaStream_t stream);
  void fill_slots(const ListedOperation& one);
  void take_retained(const RetainedPrompt& prompt);
  void poison(const Request& request, cudaStream_t stream) const;
  void copy_retained(std::span<const RetainedPrompt> prompts, const KvEntryPool& from, cudaStream_t stream);
  void fetch(std::span<const PageId> host_copies, std::span<const PageId> pages, cudaStream_t stream);

  const KvMemory memory_;
  const LlmSpec llm_;
  const RetrievalKind kind_;
  const RetrievalSpec spec_;
  const RecallCopies copies_;
  const cpu::ResidentShape shape_;
  const bool offloaded_, prefix_cache_;
  LlmSpec dense_llm_;  // the layers that choose nothing
  DevicePages pages_, resident_;
  RowAttention attention_;
  DenseLayers dense_;
  RetrievalMemory choices_;
  Buffer staging_;  // a page on its way to the host, NHD
  Buffer fetched_;  // pinned: what prefixes fetch, one list behind the other, round and round
  uint64_t fetched_at_ = 0;
  std::unique_ptr<OrderedStreams> order_;
  std::unique_ptr<CopiedRecall> copied_;     // null: a kernel recalls
  std::optional<ListedOperation> deferred_;  // the recall for the next step that the host has not started
  std::map<RequestId, Request> requests_;
  std::vector<uint32_t> free_states_;
  uint32_t states_ = 0;
  // Of the step at hand.
  uint32_t decodes_ = 0;  // rows, if all are decodes, those of padding among them; else 0
  // Of rows that choose; in steps of decodes, once one of them chooses, of all rows.
  std::vector<ChoiceRow> choice_rows_;
  uint32_t choosing_ = 0;  // rows that choose
  bool fills_ = false;     // pages are completed
  DeviceTables tables_;    // of requests that choose
  std::vector<Sealed> sealed_;
  std::vector<QueryRetained> retained_;
  const DataOutcomes* given_ = nullptr;  // what is forced on it
  std::vector<kernels::HeadRecall> forced_outcomes_;
  DeviceLists upload_, enter_upload_, kept_upload_;
  Lists at_;
  std::vector<Request*> entering_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_RETRIEVED_CACHE_H_
