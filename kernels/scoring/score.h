// One entry point for all scorers: their names, the tensors that they need captured, and their scores for one
// layer.
//
// The engine that owns the tensors calls captures() once, retains the tensors that it lists, and calls
// score_entries() per layer (or per KV head with its query heads, if heads hold different numbers of rows;
// TOVA and IntentKV join all heads of a layer and need equal rows). Scorers are deterministic and stateless:
// state (accumulators, stamps, memories) is an argument, so that it lives as long as its request or session.
//
// The names are those of engine/methods/axis_scorer_table.cc; a test compares the two.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_H_
#define KVTWIN_KERNELS_SCORING_SCORE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/scoring/score_critical.h"
#include "kernels/scoring/score_expected.h"
#include "kernels/scoring/score_gate.h"
#include "kernels/scoring/score_h2o.h"
#include "kernels/scoring/score_intent.h"
#include "kernels/scoring/score_kvzip.h"
#include "kernels/scoring/score_raas.h"
#include "kernels/scoring/score_window.h"

namespace kvtwin::kernels {

enum class ScorerKind : uint8_t {
  kNone,
  kStreaming,  // StreamingLLM, and the streaming heads of Duo- and RazorAttention
  kH2o,
  kObserved,  // H2O over a whole prompt
  kSnapKv,
  kPyramidKv,
  kTova,
  kKnorm,
  kKeyDiff,
  kExpected,
  kKvzip,
  kFastKvzip,
  kTrimKv,
  kRaas,
  kDuo,
  kRazor,
  kJudgeQ,
  kIntentRule,
  kIntentResidual,
  kFinch,
  kCritical,
  kRandom,
};
// The scorer with this name in a scenario.
std::optional<ScorerKind> scorer_kind(std::string_view name);
std::string_view scorer_name(ScorerKind kind);

// Tensors that a scorer needs captured: bits of captures(). Keys and values are those of the KV entries to
// rank.
namespace capture {
constexpr uint32_t kKeys = 1;
constexpr uint32_t kValues = 2;
constexpr uint32_t kWindowQueries = 4;  // of the last ScoreSpec::window.window rows; TOVA, RaaS: the last row
constexpr uint32_t kAllQueries = 8;     // of every scored row, post-RoPE
constexpr uint32_t kProbeTokens = 16;   // queries and keys of rows that are not in the cache
constexpr uint32_t kHidden = 32;        // input of the attention block
constexpr uint32_t kAccumulators = 64;  // H2O: updated by h2o_accumulate() with every new query
constexpr uint32_t kPageStamps = 128;   // RaaS: updated by raas_touch() every step
constexpr uint32_t kSpanQueries = 256;  // IntentKV: of the actionable query span
constexpr uint32_t kSessionMemory = 512;   // IntentKV: read and written by the session
constexpr uint32_t kGateWeights = 1024;    // FastKVzip, TrimKV
constexpr uint32_t kOutputWeights = 2048;  // CriticalKV
}  // namespace capture
uint32_t captures(ScorerKind kind);

// Whether a scorer gives one score per token for all layers and heads (IntentKV). score_entries() then adds a
// layer's part to out, which has one row and starts at zero; finish_scores() completes it after the last
// layer.
bool scores_tokens(ScorerKind kind);
// Whether every decoded token changes the scorer's state (H2O's sums, RaaS's stamps, TOVA's last row).
bool watches_decodes(ScorerKind kind);

enum class IntentMode : uint8_t { kQuery, kMemory, kLearnable };

// Parameters; each scorer reads its own. score_spec() returns the published defaults.
struct ScoreSpec {
  ScorerKind kind = ScorerKind::kNone;
  uint32_t sink = 4;                              // streaming, expected
  WindowSpec window;                              // SnapKV and its relatives; CriticalKV's base
  ObservedForm observed = ObservedForm::kPerRow;  // kObserved; its window is window.window
  ExpectedSpec expected;
  TrimKvSpec trim;
  RaasSpec raas;
  uint32_t page_tokens = 16;    // RaaS: rows per stamp
  uint32_t critical_first = 0;  // CriticalKV: KV entries chosen by the base score alone (half the budget)
  bool renormalise = false;     // Judge Q: probabilities over the prompt alone sum to 1
  IntentSpec intent;
  IntentMode intent_mode = IntentMode::kMemory;
  RuleNorm rule_norm = RuleNorm::kTimesCandidates;
  uint64_t seed = 0;  // random
};
ScoreSpec score_spec(ScorerKind kind);

// The captured tensors of one layer. Those that captures() does not list may be empty.
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
};

// out [H][T]; [H][T - sinks] for KVzip; [1][T] if scores_tokens(). REQUIRES: the tensors that captures()
// lists are present.
void score_entries(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out);

// IntentKV: scales the rule and adds the residual's corrections (intent_corrections(), times the clipped
// gain; empty: none). No effect for other scorers.
void finish_scores(const ScoreSpec& spec, std::span<const float> corrections, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_H_
