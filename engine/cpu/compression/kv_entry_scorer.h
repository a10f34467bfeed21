// KvEntryScorer captures the data that a scorer needs while rows are computed, and scores the KV entries that
// a compression ranks: the engine's side of kernels/scoring/score.h.
//
// Captured data belongs to a request (State), except values that are functions of their token alone: these
// are stored with the KV entry (KvEntryStore::state_value) and travel with its page (the gates of FastKVZip
// and TrimKV).
//
// Results depend on a request's own rows, not on their division into steps: H2O adds query rows one by one,
// and windows are the last rows whatever their entry.

#ifndef KVTWIN_ENGINE_CPU_COMPRESSION_KV_ENTRY_SCORER_H_
#define KVTWIN_ENGINE_CPU_COMPRESSION_KV_ENTRY_SCORER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/common/ranking.h"
#include "engine/common/scorer_weights.h"
#include "engine/cpu/compression/kv_entry_store.h"
#include "engine/methods/scorer_spec.h"
#include "kernels/scoring/score.h"
#include "models/catalog/rope.h"
#include "models/weights/weights.h"

namespace kvtwin::cpu {

struct ScorerConfig {
  kernels::ScoreSpec spec;
  CompressionTrigger compression_trigger = CompressionTrigger::kPromptEnd;
};

// The query rows that an engine must capture while an entry's rows are computed, if it accumulates nothing
// meanwhile: [first, first + count) of the entry's rows. Of all rows captured for the request, the last
// `kept` remain.
constexpr uint32_t kAllRows = UINT32_MAX;
struct CaptureRange {
  uint32_t first = 0, count = 0;
  uint32_t kept = 0;
};
CaptureRange capture_range(const ScorerConfig& config, const StepRows& rows);

class KvEntryScorer {
 public:
  // Captured data of one request, from its admission on.
  struct State {
    std::vector<Queries> queries;               // by layer
    std::vector<std::vector<float>> gathered;   // H2O, by head: one sum per KV entry
    std::vector<std::vector<uint32_t>> stamps;  // RaaS, by head: one stamp per KV entry
    std::vector<Probes> probes;                 // Judge Q, by layer
    std::vector<std::vector<float>> repeated;   // KVzip, by head: one score per KV entry

    void keep(uint32_t head, uint32_t first, std::span<const uint32_t> rows);
  };

  // All arguments must outlive it.
  KvEntryScorer(const ScorerConfig& config, const ModelWeights* model, const ScorerWeights* weights,
                KvEntryStore* store);

  const kernels::ScoreSpec& spec() const { return config_.spec; }
  bool scores_tokens() const { return config_.spec.scorer->scores_tokens(); }
  bool needs_hidden() const { return (captured_ & kernels::capture::kHidden) != 0; }

  void begin(State* state) const;
  // An entry of the request starts.
  void begin_rows(const StepRows& rows, State* state) const;
  // Stores the scorer state (gates) of the KV entries that the step's rows become, from the input of the
  // attention block, [rows][hidden].
  //   places[row * kv_heads + head]
  void update_state(uint32_t layer, const float* hidden, uint32_t rows, std::span<const Place> places) const;
  // Captures from the queries of the entry's rows, [tokens][query_heads][head_dim], rotated. `kv_entries` has
  // the slots of its KV entries.
  void observe(uint32_t layer, const StepRows& rows, const float* q, const RequestTable& kv_entries,
               State* state) const;

  // Fills the scores of one layer's heads. `expected`: the number of KV entries that a head will retain
  // besides the forced ones. `tokens`: computed so far.
  void score(uint32_t layer, std::span<RankedHead> heads, uint32_t tokens, const StepRows& rows,
             uint32_t expected, const State& state) const;
  // KVzip: scores the KV entries of the pass by the attention of their repetition to the sinks, to them and
  // to the repetition's own rows. The context begins at `begin`.
  void score_repeated(uint32_t layer, const Probes& probes, const ProbePass& pass, uint32_t begin,
                      const RequestTable& kv_entries, State* state) const;

 private:
  struct Gathered;  // tensors of several heads of one layer

  void accumulate(uint32_t layer, const StepRows& rows, const float* q, const RequestTable& kv_entries,
                  State* state) const;
  void touch(uint32_t layer, const StepRows& rows, const float* q, const RequestTable& kv_entries,
             State* state) const;
  void score_heads(uint32_t layer, std::span<RankedHead> heads, uint32_t tokens, const StepRows& rows,
                   uint32_t expected, const State& state) const;
  void score_gathered(Gathered* g, uint32_t layer, std::span<RankedHead> heads, uint32_t tokens,
                      const StepRows& rows, uint32_t expected, const State& state) const;
  void score_retained(Gathered* g, std::span<RankedHead> heads, uint32_t tokens, const StepRows& rows,
                      const State& state) const;
  kernels::ScoreSource source() const { return config_.spec.scorer->source; }
  kernels::RopePlanes planes() const { return {rope_.inverse, rope_.scale}; }

  const ScorerConfig config_;
  const LlmSpec llm_;
  const RopeFrequencies rope_;
  const uint32_t captured_;
  KvEntryStore* const store_;
  const ScorerWeights& weights_;
  std::vector<std::vector<float>> output_;  // CriticalKV: W_o by layer
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_COMPRESSION_KV_ENTRY_SCORER_H_
