// RetrievedCache holds all KV of a request and reads a part of it: Quest, ArkVale, ShadowKV, InfiniGen,
// FreeKV (docs/design/methods/freekv.md). KV entries on pages by position, none dropped, in fp32. In a packed
// format, pages hold the values that unpacking gives; packed bytes are not stored.
//
// Prompts read everything. A decode whose pages exceed the budget selects among its full pages outside sinks
// and window, in every layer but the dense ones, for every KV head. Quest keeps all pages on the GPU. The
// other methods keep them on the host, to which full pages are copied at once, and recall them into the slots
// of the request's resident pages (resident_request.h) before they are read: a page that was not recalled
// cannot be read. Runs are read in order of position, whatever their slots, so that results do not depend on
// the history of recalls.
//
// When a prompt is complete, the selection of its last query fills the resident pages, from pages that are
// still on the GPU; no page moves between tiers. In the first step that selects, all methods recall missing
// pages before attention. ShadowKV's selected pages have reconstructed keys and recalled values. InfiniGen
// recalls tokens, not pages, which it selects while the layer before computes. A row depends on its own
// request alone.

#ifndef KVTWIN_ENGINE_CPU_RETRIEVAL_RETRIEVED_CACHE_H_
#define KVTWIN_ENGINE_CPU_RETRIEVAL_RETRIEVED_CACHE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/kv_format.h"
#include "engine/common/retrieval/head_choice.h"
#include "engine/common/retrieval/page_summaries.h"
#include "engine/common/retrieval/prefix_rows.h"
#include "engine/common/retrieval/query_projection.h"
#include "engine/common/retrieval/resident_request.h"
#include "engine/common/retrieval/retrieval_witness.h"
#include "engine/cpu/kv_cache.h"
#include "engine/cpu/kv_store.h"
#include "engine/cpu/retrieval/recall_streams.h"
#include "kernels/attention/attention.h"
#include "kernels/cache_ops/rope_append.h"
#include "kernels/select/page_score.h"
#include "models/weights/weights.h"

namespace kvtwin::cpu {

struct RetrievedOptions {
  RetrievalKind kind = RetrievalKind::kRecallsPages;
  RetrievalSpec spec{};
  RecallCopies copies{};
  // For tests: the seed of early copies (recall_streams.h), and an observer of all actions.
  uint64_t delays = 0;
  RetrievalWitness* witness = nullptr;
  // For tests: may replace the tokens that InfiniGen selected for a head (ascending positions).
  std::function<void(const HeadAt&, std::vector<uint32_t>*)> replace_tokens{};
  // Requests may reuse other requests' pages: the data that a method derives of a prefix is stored by page.
  bool prefix_cache = false;
  // Of the pages. Packed: a chunk's rows attend to their own chunk exactly and to earlier KV entries as
  // stored; a decoded row is stored first, as in packed_cache.h. Pages are summarised from what they give
  // back. REQUIRES: bf16, or kRecallsPages and a format that packs tokens one by one.
  Format format = Format::kBf16;
  uint32_t group = 32;
};

// Returns one sentence about a requirement that this model does not meet, with a remedy; nullopt: it meets
// all.
std::optional<std::string> check_retrieved(const RetrievedOptions& options, const KvMemory& memory,
                                           const LlmSpec& llm);

class RetrievedCache final : public KvCache {
 public:
  // `weights` must outlive this. Fails if there is no memory for the pages. REQUIRES: validate_policy_set()
  // accepts the method and its spec, and check_retrieved() returns nullopt.
  static Result<std::unique_ptr<KvCache>> make(const KvMemory& memory, const ModelWeights* weights,
                                               const RetrievedOptions& options);

  // Only the recalls of FreeKV and ArkVale can be forced.
  void force_outcomes(const DataOutcomes* given) override { given_ = given; }
  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) override;
  void hidden(uint32_t layer, const float* x) override;
  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           DataOutcomes* values) override;
  void notify(const Command& command) override;

  // A prompt that another cache computed and compressed, whose last row has just run: its retained KV
  // entries, the same number in every head. `gpu` and `host_copies` are the request's pages; those that the
  // retained KV entries do not fill are free.
  struct RetainedPrompt {
    RequestId request{};
    uint32_t tokens = 0, kv_entries = 0;
    std::span<const PageId> gpu, host_copies;
    std::span<const std::vector<float>> queries;  // by layer: queries of the last row, rotated
    // Copies key and value of a KV entry, with their rotation.
    std::function<void(uint32_t layer, uint32_t head, uint32_t kv_entry, float* key, float* value)> copy;
  };
  // retrieved_retained.cc. REQUIRES: resident pages; a method that stores nothing but pages of a request.
  void take_over(const RetainedPrompt& prompt);

 private:
  struct Row {
    RequestId id{};
    ResidentRequest* request = nullptr;
    uint32_t position = 0;
    uint32_t kv_entry = 0;  // index among the retained KV entries, by which pages are counted
    bool chooses = false;   // it selects pages
    bool chunk = false;     // of a chunk
    uint32_t choice = 0;    // its index among the rows that select
  };
  // The KV entries that one KV head reads, in order of position.
  struct Reading {
    std::vector<kernels::ReadRun> runs;
    std::vector<uint32_t> positions;  // of every KV entry, among the retained ones
  };

  RetrievedCache(const KvMemory& memory, const ModelWeights* weights, const RetrievedOptions& options,
                 KvStore kv, KvStore resident);

  uint32_t group() const { return llm_.query_heads / llm_.kv_heads; }
  uint32_t pages_of(uint32_t tokens) const {
    return (tokens + memory_.page_tokens - 1) / memory_.page_tokens;
  }
  uint32_t first_candidate() const { return shape_.sinks; }
  // One past the last page that can be selected, with `pages` pages of context.
  uint32_t end_candidates(uint32_t pages) const { return pages - shape_.window; }

  // retrieved_cache.cc: pages and rows
  ResidentRequest new_request() const;
  void take_pages(const LaunchStep& launch, uint32_t offset);
  void begin_with(const PrefixHit& prefix_hit);
  void fetch(PageId host_copy, PageId page);
  void add_rows(const PlanEntry& entry);
  kernels::AppendRow append_of(ResidentRequest* request, uint32_t position);
  void seal_page(uint32_t layer, const ResidentRequest& request, uint32_t number, uint32_t page);
  void attend_dense(uint32_t layer, float* q, float* k, const float* v, float* out);
  void attend_all(uint32_t layer, const Row& row, const float* q, float* out);
  void seal_pages(uint32_t layer, bool chunks);
  void append(const kernels::KvPages& pages, std::span<const kernels::AppendRow> rows, float* q, float* k,
              const float* v);
  void store_rows(const kernels::KvPages& pages, std::span<const kernels::AppendRow> rows, bool chunks);
  bool packs() const { return options_.format != Format::kBf16; }
  void keep_factors(uint32_t layer, const float* q, const float* k);
  kernels::HostPage host_copy(uint32_t layer, const ResidentRequest& request, uint32_t page) const {
    return host_page(kv_, layer, request.host_copies.at(page), layout_);
  }
  HeadAt head_at(const Row& row, uint32_t layer, uint32_t head) const {
    return {row.id, layer, head, row.position};
  }

  // retrieved_choice.cc: selection of pages, and their recall
  HeadChoice choose(uint32_t layer, const ResidentRequest& request, uint32_t head, uint32_t pages,
                    const float* q) const;
  void deal_recalls();
  const kernels::HeadRecall* notify(uint32_t layer, const Row& row, uint32_t head) const;
  void attend_chosen(uint32_t layer, const Row& row, const float* q, float* out);
  void read_on_gpu(uint32_t layer, const Row& row, const float* q, float* out);
  void recall_and_read(uint32_t layer, const Row& row, const float* q, float* out);
  void recall(uint32_t layer, const Row& row, uint32_t head, HeadChoice* choice, bool before);
  void read_head(uint32_t layer, const Row& row, uint32_t head, std::span<const uint32_t> chosen,
                 bool corrected, const float* q, float* out);
  std::vector<uint8_t> turned_heads(const ResidentLayer& layer, const float* q) const;
  std::vector<uint8_t> heads_before(uint32_t layer, const Row& row, bool trusts, const float* q);
  void append_page(const ResidentRequest& request, uint32_t page, uint32_t place, uint32_t end,
                   Reading* to) const;
  void read(uint32_t layer, const Row& row, uint32_t head, const Reading& reading, bool corrected,
            const float* q, float* out);

  // retrieved_shadow.cc: ShadowKV
  void rebuild_and_read(uint32_t layer, const Row& row, const float* q, float* out);
  void place_values(uint32_t layer, const ResidentRequest& request, uint32_t head, uint32_t page,
                    uint32_t slot);
  void rebuild_keys(uint32_t layer, const ResidentRequest& request, uint32_t head);
  std::vector<uint32_t> outliers(uint32_t layer, const ResidentRequest& request, uint32_t head,
                                 uint32_t end) const;

  // retrieved_tokens.cc: InfiniGen
  void choose_tokens(uint32_t layer, const Row& row, const float* x);
  void recall_tokens(uint32_t layer, const ResidentRequest& request, uint32_t head,
                     std::span<const uint32_t> tokens);
  void read_tokens(uint32_t layer, const Row& row, const float* q, float* out);

  // retrieved_resident.cc: completed prompts
  void enter_resident(ResidentRequest* request, uint32_t tokens);
  void fill_slots(uint32_t layer, ResidentRequest* request, uint32_t pages);
  void place_page(uint32_t layer, const ResidentRequest& request, uint32_t head, uint32_t page,
                  uint32_t slot);
  void outgrow(uint32_t layer, ResidentRequest* request);

  const KvMemory memory_;
  const LlmSpec llm_;
  const RetrievedOptions options_;
  const RetrievalSpec spec_;
  const ResidentShape shape_;
  const bool offloaded_;
  const kernels::HostPageLayout layout_;
  const RopeFrequencies rope_;
  KvStore kv_;
  KvStore resident_;  // pages of dense layers, with resident pages; page i corresponds to host page i
  PageSummaries summaries_;
  PrefixRows prefix_rows_;
  RecallStreams streams_;
  std::vector<QueryProjection> projections_;  // InfiniGen: of the layers that select
  std::map<RequestId, ResidentRequest> requests_;
  // State of the current step.
  std::vector<Row> rows_;
  std::vector<kernels::AppendRow> appends_, dense_appends_;
  std::vector<float> values_;         // packed: of the layer, rounded to bf16
  std::vector<uint8_t> packed_page_;  // scratch: one head of a page
  std::vector<LayerRecall> recalls_;
  const DataOutcomes* given_ = nullptr;  // its forced outcomes
  std::vector<std::vector<kernels::HeadRecall>>
      dealt_;  // by layer: forced recalls of each selecting row's heads
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_RETRIEVAL_RETRIEVED_CACHE_H_
