// Parameters and inputs of all scorers (scorer.h), and the one entry point to their scores for one layer.
//
// The engine that owns the tensors retains those that the definition lists, and calls score_entries() per
// layer (or per KV head with its query heads, if heads hold different numbers of rows and the scorer does not
// join them). Scorers are deterministic and stateless: state (accumulators, stamps, memories) is an argument,
// so that it lives as long as its request or session.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_H_
#define KVTWIN_KERNELS_SCORING_SCORE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/scoring/score_critical.h"
#include "kernels/scoring/score_expected.h"
#include "kernels/scoring/score_external.h"
#include "kernels/scoring/score_gate.h"
#include "kernels/scoring/score_h2o.h"
#include "kernels/scoring/score_intent.h"
#include "kernels/scoring/score_kvzip.h"
#include "kernels/scoring/score_raas.h"
#include "kernels/scoring/score_window.h"
#include "kernels/scoring/scorer.h"

namespace kvtwin::kernels {

enum class IntentMode : uint8_t { kQuery, kMemory, kLearnable };

// Parameters; each scorer reads its own. score_spec() returns the published defaults.
struct ScoreSpec {
  const ScorerDefinition* scorer = all_scorers().front();
  uint32_t sink = 4;  // streaming, expected
  WindowCodeBase code_base = WindowCodeBase::kKvpress;
  WindowSpec window;                              // SnapKV and its relatives; CriticalKV's base
  ObservedForm observed = ObservedForm::kPerRow;  // kObserved; its window is window.window
  ExpectedSpec expected;
  TrimKvSpec trim;
  RaasSpec raas;
  uint32_t page_tokens = 16;  // RaaS: rows per stamp
  bool renormalise = false;   // Judge Q: probabilities over the prompt alone sum to 1
  IntentSpec intent;
  IntentMode intent_mode = IntentMode::kMemory;
  RuleNorm rule_norm = RuleNorm::kTimesCandidates;
  uint64_t seed = 0;  // random
  // Options of scorers that have no fields above; each scorer numbers its own.
  std::array<float, 8> own{};
  std::shared_ptr<ExternalScorer> external;  // absent: the scorer is not external
};
// REQUIRES: there is a scorer of this name.
ScoreSpec score_spec(std::string_view scorer);

// The captured tensors of one layer. Those that the definition does not list may be empty.
struct ScoreInputs {
  uint32_t layer = 0;
  uint32_t layers = 1;
  uint32_t head_first = 0;  // first KV head of these tensors
  uint32_t tokens = 0;      // logical length N: the position of the next token
  Positions positions;      // positions of the KV entries to rank
  HeadsView k, v;           // [H][T][d]
  HeadsView q;              // [Hq][w][d]: queries of the window, of all rows, or of probe tokens
  std::span<const uint32_t> q_positions{};  // [w]
  HeadsView own_k;                          // [H][w][d]: keys of probe tokens
  HeadsView q_hat;         // [Hq][n][d], Expected Attention: pre-RoPE queries (unrotate_queries())
  uint32_t sinks = 0;      // KVzip: the first rows of k, which are sinks; out has the other rows
  HeadsView hidden;        // [1][T][D]
  ScoreView accumulators;  // [H][T]
  ScoreView log_beta;      // [H][T]
  std::span<const uint32_t> stamps{};  // [H][pages]
  std::span<const float> memory{};     // [Hq][d]
  uint32_t query_heads = 0;            // IntentKV: Hq
  RopePlanes rope;
  const FastKvzipGate* gate = nullptr;
  const OutputProjection* output = nullptr;
  uint32_t retained = 0;  // entries that a head will retain besides the forced ones
  // Rows that are retained whatever their score, by head; empty: none.
  std::span<const std::vector<uint32_t>> forced{};
};

// Calls the scorer's function (ScorerDefinition::score).
void score_entries(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out);

// IntentKV: scales the rule and adds the residual's corrections (intent_corrections(), times the clipped
// gain; empty: none). No effect for other scorers.
void finish_scores(const ScoreSpec& spec, std::span<const float> corrections, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_H_
