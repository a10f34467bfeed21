// CompressedCache is the backend side of scorers, budgets and layouts: it performs Compression commands
// (commands.h) on real keys, values and queries, and reports the retained KV entries.
//
// Attention reads a list of KV entries per KV head (docs/design/methods/composition.md#data, ReadSet).
// Dropped KV entries are not in the list; nothing is masked by a value. The rows of a step are written before
// they are read. Rows of staged entries wait outside the pages; they are ranked right after their layer's
// attention, and only retained ones are written. All others are ranked when the step's rows went through all
// layers, because budgets and scorers may compare layers.
//
// The class also serves layouts that drop nothing, if decodes select among packed pages (Quest).
//
// Pages may be packed (kv_entry_store.h). Then rows are first rounded to bf16, a chunk reads its own rows
// exactly and its past as stored, and a decoded row is stored before it is read
// (docs/design/methods/triaxialkv.md#serving, as in packed_cache.h).
//
// Files: request_table (slots of KV entries), kv_entry_store (their values), kv_entry_scorer and
// kv_entry_capture (scores), kv_entry_budget (counts), compress_step.cc (from a Compression to its outcome),
// compressed_choice.cc (the retained pages that a decode reads).

#ifndef KVTWIN_ENGINE_CPU_COMPRESSION_COMPRESSED_CACHE_H_
#define KVTWIN_ENGINE_CPU_COMPRESSION_COMPRESSED_CACHE_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "engine/common/kv_entry_budget.h"
#include "engine/common/retrieval/resident_request.h"
#include "engine/common/retrieval/retrieval_witness.h"
#include "engine/common/scorer_weights.h"
#include "engine/common/shared_prefixes.h"
#include "engine/cpu/compression/intent_memory.h"
#include "engine/cpu/compression/kv_entry_scorer.h"
#include "engine/cpu/kv_cache.h"
#include "engine/methods/config.h"
#include "kernels/attention/attention.h"

namespace kvtwin::cpu {

struct CompressedConfig {
  CoreConfig core;                         // of its engine: the policy's side of the same axes
  kernels::ScoreSpec score;                // of core.policies.scorer
  uint64_t seed = 0;                       // of drawn weights
  std::optional<ScorerWeights> weights{};  // absent: drawn
  bool ask_response = false;               // Judge Q: the response's own tokens replace the soft tokens (J-3)
  std::vector<uint32_t> repeat_instruction{};  // KVzip: its token ids; empty: drawn
  // Replaces selection by the cache's own scores: returns the positions that a head retains after the current
  // compression (layouts that drop in place: head 0 for all heads). For comparison with another engine.
  std::function<std::span<const uint32_t>(RequestId request, uint32_t head)> force_outcomes{};
  RetrievalWitness* witness = nullptr;  // for tests: is notified of the reads of rows that select
};

// The instruction that precedes each part that KVzip repeats, ScorerSpec::repeat_instruction token ids.
std::vector<uint32_t> repeat_instruction(const CompressedConfig& config, uint32_t vocab);

// The shape of an engine's request tables. REQUIRES: validate_core_config() returns nullopt.
RequestTableShape table_shape(const CoreConfig& config);

class CompressedCache final : public KvCache {
 public:
  // `weights` must outlive it. Fails if there is no memory for the pages. REQUIRES: validate_core_config()
  // and check_compressed() return nullopt.
  static Result<std::unique_ptr<CompressedCache>> make(const CompressedConfig& config, const KvMemory& memory,
                                                       const ModelWeights* weights);

  void serve(const EngineAccess& engine) override { access_ = engine; }
  void force_outcomes(const DataOutcomes* given) override { given_ = given; }
  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) override;
  void hidden(uint32_t layer, const float* x) override;
  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           DataOutcomes* values) override;
  void notify(const Command& command) override;

  // Positions that a head (layer * kv_heads + head) of a request retains, ascending; for tests.
  std::span<const uint32_t> positions(RequestId request, uint32_t head) const {
    return requests_.at(request).kv_entries.positions(head);
  }
  const RequestTableShape& shape() const { return shape_; }
  const RequestTable& kv_entries(RequestId request) const { return requests_.at(request).kv_entries; }
  // Number of scores that were NaN (they rank last), since the start.
  uint64_t nan_scores() const { return nan_scores_; }
  const KvEntryStore& store() const { return *store_; }

 private:
  struct Request {
    RequestTable kv_entries;
    KvEntryScorer::State captured;
    std::vector<std::vector<float>> summaries;  // by head: [leading pages][high, low][head_dim]
  };
  struct Work {
    StepRows rows;
    Request* request = nullptr;
    const ProbePass* pass = nullptr;  // of probe tokens, after the step's rows; it has none among them
    const Compression* compression = nullptr;
    bool own_exact = false;               // its rows read one another from staging, wherever they are stored
    std::vector<kernels::ReadRun> reads;  // kInPlace: reads of all heads
    std::vector<uint64_t> live;           // kInPlace: live bits after a compression before its rows
  };

  CompressedCache(const CompressedConfig& config, const KvMemory& memory, const ModelWeights* weights);

  void take_pages(const LaunchStep& launch, uint32_t offset);
  Request& request_of(RequestId id);

  // compressed_attend.cc
  const float* rounded(float* k, const float* v);
  void write_rows(uint32_t layer, const float* k, const float* v);
  Place place_of(const Work& work, uint32_t head, uint32_t row) const;
  void rotate(float* q, float* k) const;
  void read_rows(uint32_t layer, uint32_t kv_head, const float* q, float* out);
  void reads_of(const Work& work, uint32_t head, const float* q);
  void ring_reads(const Work& work, uint32_t head, uint32_t row, std::vector<kernels::ReadRun>* runs) const;
  void hold_in_rings(uint32_t layer, bool prompts);

  // compressed_choice.cc
  struct PageEntries {
    uint32_t index = 0;  // in the group's page table
    uint32_t first = 0;  // its first KV entry
    uint32_t count = 0;
  };
  std::vector<PageEntries> pages_left(const RequestTable& kv_entries, uint32_t head) const;
  bool may_choose(const Work& work, uint32_t head) const;
  const float* summary_of(const Work& work, uint32_t head, uint32_t index);
  bool chosen_reads(const Work& work, uint32_t head, const float* q);
  void read_pages(const Work& work, uint32_t head, std::span<const PageEntries> pages);

  // compress_step.cc
  RankedHead ranked(const Work& work, uint32_t head) const;
  std::vector<RankedHead> rank_layer(const Work& work, uint32_t layer);
  uint32_t expected_of(const Work& work, const RankedHead& head) const;
  kernels::RowSet choose(const Work& work, const RankedHead& head, std::span<const float> scores,
                         uint32_t count);
  void keep(const Work& work, RankedHead* head, uint32_t count);
  void compress_staged(const Work& work, uint32_t layer);
  std::vector<uint32_t> counts(const Work& work, std::span<const RankedHead> heads) const;
  void compress(const Work& work, DataOutcomes* values);
  std::vector<RankedHead> rank_all(const Work& work);
  void compress_in_place(const Work& work, std::vector<RankedHead>* heads, std::vector<uint64_t>* live);
  std::vector<float> token_scores(std::span<const RankedHead> heads) const;

  // compress_probes.cc
  void run_pass(const Work& work);
  std::vector<float> probe_inputs(const Work& work) const;
  void remember(const Work& work);

  const CompressedConfig config_;
  const KvMemory memory_;
  const LlmSpec llm_;
  const RopeFrequencies rope_;
  const RetrievalSpec retrieval_;
  const bool chooses_;  // decodes read a selection of the retained pages
  RequestTableShape shape_;
  ScorerWeights weights_;
  EngineAccess access_;
  std::unique_ptr<KvEntryStore> store_;
  std::unique_ptr<IntentMemory> intents_;
  std::set<RequestId> remembered_;  // requests whose prompt is in the session's memory
  std::unique_ptr<KvEntryScorer> scorer_;
  std::unique_ptr<KvEntryBudget> budget_;
  std::map<RequestId, Request> requests_;
  SharedPrefixes shared_;
  // State of the current step.
  std::vector<Work> work_;
  uint32_t rows_ = 0;
  const float* hidden_ = nullptr;
  std::deque<std::vector<kernels::ReadRun>> runs_;
  std::vector<kernels::AttentionRow> reads_;
  std::vector<float> head_q_, head_out_;
  std::vector<float> values_;  // of the layer, rounded; only if pages are packed
  std::vector<LayerRecall> recalls_;
  uint64_t nan_scores_ = 0;
  const DataOutcomes* given_ = nullptr;  // forced outcomes of the current step
};

// Returns one sentence about a choice that the policy allows and CompressedCache does not compute, with a
// remedy; nullopt: it computes all. REQUIRES: validate_core_config() returns nullopt.
std::optional<std::string> check_compressed(const CoreConfig& config, const LlmSpec& llm);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_COMPRESSION_COMPRESSED_CACHE_H_
