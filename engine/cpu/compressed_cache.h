// CompressedCache is the world half of scorers, budgets and layouts: it performs Compression commands
// (commands.h) on real keys, values and queries, and answers them with what was kept.
//
// Attention reads each KV head's own list of cells (METHODS 7.2, ReadSet): what was dropped is not in it, and
// nothing is masked by a value. A step's rows are written before they are read. Rows of staged entries wait
// beside the pages; they are ranked right after their layer's attention, and only what is kept is written.
// Everything else is ranked when the step's rows went through all layers, because budgets and scorers may
// look across them.
//
// It also keeps what nothing is dropped of, where decodes choose among packed pages (Quest).
//
// Pages may be packed (cell_store.h). Then rows are rounded to bf16 first, a chunk reads its own rows exactly
// and its past as stored, and a decoded row is stored before it is read (METHODS 4.6, as in packed_cache.h).
//
// Files: call_cells (where cells lie), cell_store (their values), cell_scorer and cell_capture (scores),
// cell_budget (counts), compress_step.cc (from a Compression to an answer), compressed_choice.cc (which of
// the kept pages a decode reads).

#ifndef KVTWIN_ENGINE_CPU_COMPRESSED_CACHE_H_
#define KVTWIN_ENGINE_CPU_COMPRESSED_CACHE_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "engine/cpu/arena_call.h"
#include "engine/cpu/cell_budget.h"
#include "engine/cpu/cell_scorer.h"
#include "engine/cpu/intent_memory.h"
#include "engine/cpu/kv_cache.h"
#include "engine/cpu/retrieval_witness.h"
#include "engine/cpu/scorer_weights.h"
#include "engine/policy/config.h"
#include "kernels/attention.h"

namespace kvtwin::cpu {

struct CompressedConfig {
  CoreConfig core;                         // of its engine: the policy's side of the same axes
  kernels::ScoreSpec score;                // of core.policies.scorer
  uint64_t seed = 0;                       // of weights that nobody trained
  std::optional<ScorerWeights> weights{};  // else drawn
  bool ask_response = false;  // Judge Q: the response's own tokens are asked instead of soft ones (J-3)
  // Not its own scores choose, but somebody else's: positions that are left of a head after the compression
  // at hand (all heads of a layout with holes: head 0). For comparison with another engine.
  std::function<std::span<const uint32_t>(CallId call, uint32_t head)> impose{};
  RetrievalWitness* witness = nullptr;  // tests: is told what rows that choose read
};

// How an engine's cells lie. REQUIRES: validate_core_config() found nothing.
CellShape cell_shape(const CoreConfig& config);

class CompressedCache final : public KvCache {
 public:
  // `weights` must outlive it. Wrong: no room for so many pages. REQUIRES: validate_core_config() found
  // nothing, and check_compressed() neither.
  static Result<std::unique_ptr<CompressedCache>> make(const CompressedConfig& config, const KvMemory& memory,
                                                       const ModelWeights* weights);

  void serve(const EngineAccess& engine) override { access_ = engine; }
  void impose(const StepValues* given) override { given_ = given; }
  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) override;
  void hidden(uint32_t layer, const float* x) override;
  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           StepValues* values) override;
  void told(const Command& command) override;

  // Positions that are left of a call in a head (layer * kv_heads + head), ascending: tests.
  std::span<const uint32_t> positions(CallId call, uint32_t head) const {
    return calls_.at(call).cells.positions(head);
  }
  const CellShape& shape() const { return shape_; }
  const CallCells& cells(CallId call) const { return calls_.at(call).cells; }
  // Scores that were no numbers (they rank last), ever.
  uint64_t nan_scores() const { return nan_scores_; }
  const CellStore& store() const { return *store_; }

 private:
  struct Call {
    CallCells cells;
    CellScorer::State captured;
    std::vector<std::vector<float>> summaries;  // by head: [pages][high, low][head_dim], the first so many
  };
  struct Work {
    StepRows rows;
    Call* call = nullptr;
    const Compression* compression = nullptr;
    bool own_exact = false;               // its rows read one another in staging, wherever they are stored
    std::vector<kernels::ReadRun> reads;  // kHoles: of all heads
    std::vector<uint64_t> live;           // kHoles: what a compression before its rows left
  };

  CompressedCache(const CompressedConfig& config, const KvMemory& memory, const ModelWeights* weights);

  void take_pages(const LaunchStep& launch, uint32_t offset);
  void adopt(const Adoption& adoption);
  void continue_from(const Adoption& adoption);
  void fill_copy(CallId call, const PageGrant& grant);
  Call& call_of(CallId id);

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
  struct PageCells {
    uint32_t index = 0;  // in the group's table
    uint32_t first = 0;  // cell
    uint32_t count = 0;
  };
  std::vector<PageCells> pages_left(const CallCells& cells, uint32_t head) const;
  bool may_choose(const Work& work, uint32_t head) const;
  const float* summary_of(const Work& work, uint32_t head, uint32_t index);
  bool chosen_reads(const Work& work, uint32_t head, const float* q);
  void read_pages(const Work& work, uint32_t head, std::span<const PageCells> pages);

  // compress_step.cc
  RankedHead ranked(const Work& work, uint32_t head) const;
  std::vector<RankedHead> rank_layer(const Work& work, uint32_t layer);
  uint32_t expected_of(const Work& work, const RankedHead& head) const;
  kernels::RowSet choose(const Work& work, const RankedHead& head, std::span<const float> scores,
                         uint32_t count);
  void keep(const Work& work, RankedHead* head, uint32_t count);
  void compress_staged(const Work& work, uint32_t layer);
  std::vector<uint32_t> counts(const Work& work, std::span<const RankedHead> heads) const;
  void compress(const Work& work, StepValues* values);
  std::vector<RankedHead> rank_all(const Work& work);
  void compress_holes(const Work& work, std::vector<RankedHead>* heads, std::vector<uint64_t>* live);
  std::vector<float> token_scores(std::span<const RankedHead> heads) const;

  // compress_probes.cc
  void run_probes(const Work& work);
  void ask_judges(const Work& work);
  void repeat_context(const Work& work);
  uint32_t probe_rows() const;
  void remember(const Work& work);

  const CompressedConfig config_;
  const KvMemory memory_;
  const LlmSpec llm_;
  const RopeFrequencies rope_;
  const RetrievalSpec retrieval_;
  const bool chooses_;  // decodes read some of what is left
  CellShape shape_;
  ScorerWeights weights_;
  EngineAccess access_;
  std::unique_ptr<CellStore> store_;
  std::unique_ptr<IntentMemory> intents_;
  std::set<CallId> remembered_;  // calls whose prompt the session's memory knows
  std::unique_ptr<CellScorer> scorer_;
  std::unique_ptr<CellBudget> budget_;
  std::map<CallId, Call> calls_;
  std::map<PageId, std::vector<bool>> page_dead_;  // kHoles: slots of a page that hold nothing any more
  std::map<uint32_t, CallCells> snapshots_;        // by number: where the cells were
  // Of the step at hand.
  std::map<std::pair<CallId, uint32_t>, std::vector<PageId>> copied_;  // by group: pages still to be copied
  std::vector<Work> work_;
  uint32_t rows_ = 0;
  const float* hidden_ = nullptr;
  std::deque<std::vector<kernels::ReadRun>> runs_;
  std::vector<kernels::AttentionRow> reads_;
  std::vector<float> head_q_, head_out_;
  std::vector<float> values_;  // of the layer, rounded: where pages are packed
  std::vector<LayerRecall> recalls_;
  uint64_t nan_scores_ = 0;
  const StepValues* given_ = nullptr;  // what is imposed on the step at hand
};

// What CompressedCache does not compute of what the policy allows: a sentence with the way out; nullopt: it
// computes this. REQUIRES: validate_core_config() found nothing.
std::optional<std::string> check_compressed(const CoreConfig& config, const LlmSpec& llm);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_COMPRESSED_CACHE_H_
