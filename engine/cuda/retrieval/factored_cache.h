// FactoredCache: ShadowKV and InfiniGen, which keep factors of keys on the GPU besides pages. What is chosen,
// rebuilt, moved and reported is what cpu::RetrievedCache's header says; choices are made on the device.
//
//   ShadowKV   scores of landmarks, choice, and, concurrently, recall of the absent values and rebuilding of
//              all chosen keys from coordinates and directions; then attention over the slots
//   InfiniGen  during layer l, for layer l + 1: queries from the layer's input, partial scores, choice, and
//              recall of single tokens on a stream of their own, which attention of layer l + 1 waits for
//
// Each layer walks its part of the step's list (engine/steps/step_list.h), whose streams and events are those
// of OrderedStreams. Full pages go to the host beside the step.
//
// Factors are made on the host, in double (engine/common/retrieval): when a prompt is complete and, for
// ShadowKV, at the end of steps. Rows come to the host for that: those of prompts layer by layer, those of
// decodes behind the step, so a step of decodes waits for the host nowhere. The host chooses which pages of a
// request stay (ShadowKV's outliers), once. Layers that choose nothing, prompts, and requests that fit their
// resident pages are as in RetrievedCache.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_FACTORED_CACHE_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_FACTORED_CACHE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/common/retrieval/prefix_rows.h"
#include "engine/common/retrieval/resident_request.h"
#include "engine/cuda/device/device_lists.h"
#include "engine/cuda/device/device_pages.h"
#include "engine/cuda/device/layered_array.h"
#include "engine/cuda/kv_cache.h"
#include "engine/cuda/retrieval/dense_layers.h"
#include "engine/cuda/retrieval/ordered_streams.h"
#include "engine/cuda/retrieval/retrieval_memory.h"
#include "engine/cuda/retrieval/retrieved.h"
#include "kernels/cache_ops/page_moves.h"
#include "kernels/cache_ops/rebuild_keys.h"
#include "kernels/select/partial_choice.h"

namespace kvtwin::cuda {

// A sentence that says what is not computed of one of the two methods, and what would be right.
std::optional<std::string> check_factored(RetrievalKind kind, const RetrievalSpec& spec,
                                          const RecallCopies& copies, const LlmSpec& llm,
                                          uint32_t page_tokens);

class FactoredCache final : public KvCache {
 public:
  // As make_retrieved(). REQUIRES: the kind is kRecallsValues or kRecallsTokens.
  static Result<OwnedCache> make(const KvMemory& memory, const LlmSpec& llm, const RetrievedOptions& options);

  void serve(const EngineAccess& engine) override { forward_ = engine.forward; }
  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
             const StepStream& on, StepRows* rows) override;
  void plan(const DeviceRows& rows, const StepStream& on) override;
  void attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
              const StepStream& on) override;
  StepListSpec listed(const DeviceRows& rows) const override;
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           const StepStream& on, DataOutcomes* values) override;
  void notify(const Command& command) override;
  void copy(PageId source, PageId target, cudaStream_t stream) override;
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows) override;

 private:
  struct Request : cpu::ResidentRequest {
    uint32_t state = 0;             // its number in arrays by request
    std::vector<uint32_t> factors;  // pages of coordinates or of partial keys, by position
    bool filled = false;            // ShadowKV: each head has pages of its own in the slots
    uint32_t refreshes = 0;         // ShadowKV: of the directions that are on the device
    uint32_t coordinates = 0;       // and the pages whose coordinates in them are
  };
  struct Row {
    RequestId id{};
    Request* request = nullptr;
    uint32_t position = 0;
    bool chooses = false;
  };
  // A page that the step at hand fills up.
  struct Sealed {
    uint32_t page = 0, owner = 0;
  };
  // Where the step's lists lie in an upload.
  struct Lists {
    ListAt<uint32_t> lists;  // page numbers, which the others refer to
    ListAt<QueryRetained> retained;
    ListAt<SummaryPage> summaries;
    ListAt<ChoiceRow> choices;  // ShadowKV
    ListAt<RebuildRow> rebuilt;
    ListAt<TokenRow> tokens;  // InfiniGen
    ListAt<ProjectedRow> queries, keys;
    ListAt<QueryRow> reads[2];  // by layer: a layer's are written while the one before is read
    ListAt<uint32_t> kv_entries;
  };

  FactoredCache(const KvMemory& memory, const LlmSpec& llm, const RetrievedOptions& options);
  Result<void> allocate();
  Result<void> allocate_choices();
  bool shadow() const { return kind_ == RetrievalKind::kRecallsValues; }
  bool dense(uint32_t layer) const { return layer < spec_.layers_dense; }
  uint32_t chooser(uint32_t layer) const { return layer - spec_.layers_dense; }
  uint32_t choosers() const { return llm_.layers - spec_.layers_dense; }
  uint32_t pages_of(uint32_t tokens) const { return div_ceil(tokens, memory_.page_tokens); }
  uint32_t end_candidates(uint32_t pages) const { return pages - shape_.window; }
  uint32_t kv_width() const { return llm_.kv_heads * llm_.head_dim; }
  uint32_t q_width() const { return llm_.query_heads * llm_.head_dim; }
  HostPool host_layer(uint32_t layer) const;
  void reserve_requests();

  // factored_lists.cc: what the rows of a step are
  Request& new_request(RequestId id);
  void add_page(Request* request, uint32_t host_copy);
  void take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream);
  void begin_with(const PrefixHit& prefix_hit);
  void add_entry(const PlanEntry& entry, StepRows* rows);
  void add_slots(const Request& request, uint32_t row, uint32_t position, StepRows* rows);
  uint32_t add_list(std::span<const uint32_t> list);
  ChoiceRow choice_of(const Request& request, uint32_t pages);
  void add_choices();
  void add_tokens();
  void add_reads(const Row& row, uint32_t index, uint32_t table);
  void send_lists(const StepStream& on);

  // factored_layers.cc: what one layer starts
  void start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows);
  void append(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows, cudaStream_t stream);
  void summarise(uint32_t layer, cudaStream_t stream);
  void offload(uint32_t layer, cudaStream_t stream);
  void score(uint32_t layer, const LayerRows& tensors, cudaStream_t stream);
  void choose(uint32_t layer, const LayerRows& tensors, cudaStream_t stream);
  void recall(uint32_t layer, cudaStream_t stream);
  void rebuild(uint32_t layer, cudaStream_t stream);
  void store_queries(uint32_t layer, const LayerRows& tensors, cudaStream_t stream);
  void project_keys(uint32_t layer, cudaStream_t stream);
  void project_queries(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows, cudaStream_t stream);
  ChoiceArgs page_args(uint32_t layer, const LayerRows& tensors) const;
  TokenChoiceArgs token_args(uint32_t layer) const;
  void show_tokens(uint32_t layer, const TokenChoiceArgs& args, cudaStream_t stream) const;
  void attend_tokens(uint32_t layer, const LayerRows& tensors, cudaStream_t stream);
  void fetch_counts(cudaStream_t stream);
  void touches_host_copies(uint32_t layer);

  // factored_rows.cc: factors, and what the host decides
  bool rows_needed() const { return shadow() || prefix_cache_ || at_once_; }
  void take_rows(uint32_t layer, const LayerRows& tensors, cudaStream_t stream);
  void keep_rows(uint32_t layer, uint32_t region);
  void enter_residents(const StepStream& on);
  void add_entering();
  void copy_window(cudaStream_t stream);
  void fill_slots(const ListedOperation& one, cudaStream_t stream);
  void put_partial_keys(Request* request, cudaStream_t stream);
  void put_factors(Request* request, cudaStream_t stream);
  std::vector<float> host_copy_keys(uint32_t layer, uint32_t owner, uint32_t head) const;
  std::vector<uint32_t> outliers(uint32_t layer, const Request& request, uint32_t head, uint32_t end) const;
  void place_block(uint32_t layer, const Request& request, uint32_t head, uint32_t page, uint32_t slot,
                   cudaStream_t stream);
  void stay(uint32_t layer, const Request& request, uint32_t head, std::span<const uint32_t> pages,
            cudaStream_t stream);
  void outgrow(Request* request, cudaStream_t stream);
  const __nv_bfloat16* host_copy_block(uint32_t layer, uint32_t owner, uint32_t head) const;

  const KvMemory memory_;
  const LlmSpec llm_;
  const RetrievalKind kind_;
  const RetrievalSpec spec_;
  const cpu::ResidentShape shape_;
  const bool prefix_cache_, unit_directions_;
  const std::function<void(const cpu::HeadAt&, std::span<const uint32_t>)> selected_tokens_;  // for tests
  const RopeFrequencies rope_;
  const uint32_t rank_, columns_;  // ShadowKV's rank, rounded up for tensor cores; InfiniGen's columns
  CudaForward* forward_ = nullptr;
  LlmSpec dense_llm_;  // the layers that choose nothing
  DevicePages pages_, resident_;
  RowAttention attention_;
  DenseLayers dense_;
  RetrievalMemory choices_;    // ShadowKV
  LayeredArray directions_;    // by request
  LayeredArray stays_;         // ShadowKV, by request: candidates that stay, [kv_heads][extra]
  LayeredArray factor_pages_;  // coordinates, bf16; or partial keys, fp32
  Buffer inv_freq_;
  Buffer queries_, partial_queries_, token_scores_, near_, chosen_, numbers_;  // InfiniGen, of a step
  Buffer numbers_host_;                                                        // pinned
  cpu::PrefixRows prefix_rows_;  // for requests that begin with homes of others
  std::map<RequestId, Request> requests_;
  std::vector<uint32_t> free_states_, free_factors_;
  uint32_t states_ = 0, factors_ = 0;
  Buffer keys_;     // of the step's rows, [rows][kv_heads][head_dim]
  Buffer fetched_;  // pinned: rows on their way to the host's factors
  std::unique_ptr<OrderedStreams> order_;
  // Of the step at hand.
  std::vector<Row> rows_;
  std::vector<Sealed> sealed_;
  std::vector<QueryRetained> retained_;
  std::vector<uint32_t> lists_, kv_entries_;
  std::vector<ChoiceRow> choice_rows_;
  std::vector<RebuildRow> rebuild_rows_;
  std::vector<TokenRow> token_rows_;
  std::vector<ProjectedRow> query_rows_, key_rows_;
  std::vector<QueryRow> reads_;
  bool at_once_ = false;  // rows of prompts: they come to the host layer by layer
  uint32_t token_stride_ = 0;
  DeviceLists upload_, enter_upload_;
  Lists at_;
  // Requests whose prompts the step has completed.
  std::vector<Request*> entering_;
  ListAt<uint32_t> entering_lists_;
  ListAt<ChoiceRow> entering_rows_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_FACTORED_CACHE_H_
