// Operations per KV entry and query token of each scorer, counted from its definition in kernels/score_*.h as
// if one kernel computed it for all heads of a layer. Sources: docs/design/methods/uniform.md,
// docs/design/methods/intentkv.md#scorer, docs/design/methods/judge-q.md#inference.

#include "scenarios/app/compression_work.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"
#include "engine/methods/traits.h"
#include "kernels/scoring/score.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {
namespace {

using kernels::ScoreSource;

constexpr double kBf16Bytes = 2, kFp32Bytes = 4;
constexpr double kExponential = 16;     // vector operations
constexpr double kResidualWidth = 256;  // docs/design/methods/intentkv.md#scorer
constexpr double kSpanRows = 64;        // assumed length of IntentKV's query span

class Filler {
 public:
  Filler(const LlmSpec& llm, uint32_t tp, const CoreConfig& config, CompressionWork* out)
      : set_(config.policies), page_tokens_(config.page_tokens), work_(*out) {
    query_heads_ = static_cast<double>(llm.query_heads) / tp;
    kv_heads_ = static_cast<double>(llm.kv_heads_per_gpu(tp));
    dim_ = llm.head_dim, hidden_ = llm.hidden, layers_ = llm.layers;
    work_.kv_heads = kv_heads_;
    work_.kv_entry_bytes = llm.kv.bytes(2 * kv_heads_ * dim_);
    work_.page_bytes = work_.kv_entry_bytes * page_tokens_ / page_groups(set_);
  }

  void fill(const kernels::ScorerDefinition& scorer) {
    rows_ = captured_queries(set_.scorer, set_.scorer_spec);
    score(scorer);
    // Ranking by position needs no selection; a scorer writes one score per KV entry and head.
    work_.selects = work_.score_kernels > 0 || scorer.source == ScoreSource::kDraws;
    if (work_.score_kernels > 0) work_.score.bytes += kv_heads_ * kFp32Bytes;
  }

 private:
  // `rows` query tokens attend to each KV entry: products, one exponential per query head, keys read once.
  void ask(double rows, uint32_t kernels) {
    work_.score_kernels = kernels;
    work_.score = {work_.kv_entry_bytes / 2, rows * query_heads_ * 2 * dim_,
                   rows * query_heads_ * kExponential};
  }
  KernelWork attention_scores() const { return {0, query_heads_ * 2 * dim_, query_heads_ * kExponential}; }
  void write_queries() {
    work_.capture_kernels = 1;
    work_.per_row.bytes = 2 * kBf16Bytes * query_heads_ * dim_;
  }
  void gate(double outputs, uint32_t kernels) {
    work_.capture_kernels = kernels;
    work_.per_row = {kBf16Bytes * hidden_ + kFp32Bytes * outputs, 2 * hidden_ * outputs, 0};
    work_.row_weight_bytes = kBf16Bytes * hidden_ * outputs;
    work_.score_kernels = 1;  // reads what the gate wrote
    work_.score = {kv_heads_ * kFp32Bytes, 0, 2 * kv_heads_};
  }

  void score(const kernels::ScorerDefinition& scorer) {
    switch (scorer.source) {
      case ScoreSource::kPositions:
      case ScoreSource::kDraws:
        return;
      case ScoreSource::kWindowQueries:
        ask(rows_, 2);  // probabilities, then pooling
        if (scorer.captures_any(kernels::capture::kOutputWeights)) project();
        return compare_keys(scorer.work.key_products);
      case ScoreSource::kProbes:
        return ask(rows_, 2);
      case ScoreSource::kRepeats:
        // The tokens of each pass attend to the part of the context that they repeat.
        return ask(probe_passes(set_).tokens_max(), 2);
      case ScoreSource::kSums:
        return accumulate();
      case ScoreSource::kPromptSums:
        write_queries();
        ask(0, 2);
        work_.score_pair = attention_scores();
        return;
      case ScoreSource::kAllQueries:
        return expect();
      case ScoreSource::kEntries:
        read_entries(scorer.work.entry_reads);
        return compare_keys(scorer.work.key_products);
      case ScoreSource::kGates:
        return gate(scorer.work.gate_width * (scorer.work.gate_per_head ? query_heads_ + kv_heads_ : 1), 2);
      case ScoreSource::kStamps:
        return stamp();
      case ScoreSource::kSessionMemory:
        ask(1, 2);
        if (scorer.weights == kernels::TrainedWeights::kResidual) correct();
        return;
    }
  }

  void read_entries(uint32_t times) {
    work_.score_kernels = times;
    work_.score = {times * work_.kv_entry_bytes / 2, 0, times * 2 * kv_heads_ * dim_};
  }
  // Each key times every other key of its head.
  void compare_keys(uint32_t products) {
    if (products == 0) return;
    ++work_.score_kernels;
    work_.score_pair.product_flop += products * kv_heads_ * 2 * dim_;
  }
  // |W_o V| of each KV entry and query head: a product as large as the output projection.
  void project() {
    ++work_.score_kernels;
    work_.score.bytes += work_.kv_entry_bytes / 2;
    work_.score.product_flop += 2 * query_heads_ * dim_ * hidden_;
    work_.score.vector_flop += 2 * query_heads_ * hidden_;
  }
  // Every new query token reads every key once more, and adds to one sum per KV entry and head.
  void accumulate() {
    work_.capture_kernels = 1;
    work_.per_pair = attention_scores();
    work_.per_kv_entry = attention_scores();
    work_.per_kv_entry.bytes = work_.kv_entry_bytes / 2 + 2 * kFp32Bytes * kv_heads_;
    work_.score_kernels = 1;
    work_.score = {kv_heads_ * kFp32Bytes, 0, 0};
  }
  // Pre-RoPE moments of the queries, their quadratic form for each key, and the norms of the values.
  void expect() {
    write_queries();
    work_.score_kernels = 4;
    work_.score = {work_.kv_entry_bytes + kBf16Bytes * query_heads_ * dim_,
                   query_heads_ * (4 * dim_ * dim_ + 2 * dim_),
                   query_heads_ * kExponential + 2 * kv_heads_ * dim_};
  }
  // Two summary vectors of each page are scored in every step.
  void stamp() {
    work_.capture_kernels = 2;
    work_.per_kv_entry = {work_.kv_entry_bytes / page_tokens_, 0, query_heads_ * 4 * dim_ / page_tokens_};
    work_.score_kernels = 1;
    work_.score = {kv_heads_ * kFp32Bytes / page_tokens_, 0, 0};
  }
  // The residual's cross-attention and MLP, once for all layers.
  void correct() {
    const double products = 2 * (4 * dim_ * dim_ + 4 * dim_ * kResidualWidth) + 4 * kSpanRows * dim_;
    ++work_.score_kernels;
    work_.score.product_flop += products / layers_;
  }

  const PolicySet& set_;
  const double page_tokens_;
  CompressionWork& work_;
  double query_heads_ = 0, kv_heads_ = 0, dim_ = 0, hidden_ = 0, layers_ = 1;
  uint32_t rows_ = 0;
};

}  // namespace

std::optional<CompressionWork> compression_work(const Scenario& scenario, const LlmSpec& llm,
                                                const CoreConfig& config) {
  const PolicySet& set = config.policies;
  const v1::Cost& cost = scenario.values.cost();
  const PolicyAxes axes = make_axes(set);
  if (cost.compressions() == "free" || axes.budget->keeps_all()) return std::nullopt;
  const kernels::ScorerDefinition* const scorer = kernels::find_scorer(set.scorer);
  KVT_CHECK(scorer != nullptr);
  CompressionWork work;
  Filler(llm, scenario.values.engines().tensor_parallel(), config, &work).fill(*scorer);
  const kernels::ScoreSpec score = score_spec(scenario.values);
  if (score.intent_mode == kernels::IntentMode::kMemory &&
      score.intent.memory == kernels::MemoryForm::kMaxOverTurns)
    work.score_turns = kernels::kIntentTurnsMax;
  const Retention retention(config, axes);
  // Captures of decode tokens are used only where compressions follow decode.
  work.captures_decodes = retention.at_decode();
  const BudgetTraits budget = budget_traits(set.budget);
  work.moves = retention.slot_retention() == SlotRetention::kMove;
  work.moves_all = budget.counted_by == CountedBy::kChunkRule;
  work.after_layers = axes.scorer->needs_all_layers() || retention.passes().any() ||
                      (!retention.known() && (budget.counted_by == CountedBy::kAllLayers ||
                                              set.layout_spec.clustering == Clustering::kAcrossLayers));
  work.retained_fraction = static_cast<double>(set.budget_spec.ratio) / static_cast<double>(kWhole);
  if (budget.entries && budget.known_at_admission()) work.retained_entries = set.budget_spec.kv_entries;
  // Reserved pages are written as they are allocated; only pages allocated beyond the reservation are freed.
  if (!retention.staged() && retention.slot_retention() != SlotRetention::kRing)
    work.bookkeeping_ns = cost.reclaim_ns() * page_groups(set);
  return work;
}

}  // namespace kvtwin
