// A scorer is one ScorerDefinition: its name, the tensors that it needs captured, the source of its scores,
// its options, and the function that computes the scores of one layer. Engines, prices and options are
// written for sources, never for names: a new scorer of a known source is one definition (scorers.cc) and one
// row of policy integers (engine/methods/axis_scorer_table.cc), and touches no engine.

#ifndef KVTWIN_KERNELS_SCORING_SCORER_H_
#define KVTWIN_KERNELS_SCORING_SCORER_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/common/view.h"

namespace kvtwin::kernels {

struct ScoreSpec;
struct ScoreInputs;

// Tensors that a scorer needs captured: bits of ScorerDefinition::captures. Keys and values are those of the
// KV entries to rank.
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
constexpr uint32_t kRetained = 4096;       // CriticalKV: how many entries the budget lets a head retain
}  // namespace capture

// Where scores come from. It determines what an engine captures while rows are computed, when it scores, and
// what a simulated step pays for it.
enum class ScoreSource : uint8_t {
  kPositions,      // positions alone
  kDraws,          // positions and a seed; entries are ranked as if they had been scored
  kEntries,        // keys or values of the entries
  kWindowQueries,  // the last query rows attend to the entries
  kAllQueries,     // statistics of all query rows
  kPromptSums,     // attention of all query rows of a prompt, summed
  kSums,           // attention of all query rows so far, summed while they are computed
  kGates,          // a trained gate on each token's hidden state, stored with its entry
  kStamps,         // the step in which an entry last drew attention, stored with it
  kProbes,         // probe tokens after the prompt attend to the entries
  kRepeats,        // a second pass over the context attends to the entries
  kSessionMemory,  // queries that the session remembers; one score per token
};

// The trained weights that a scorer reads (engine/common/scorer_weights.h).
enum class TrainedWeights : uint8_t { kNone, kHeadGates, kDecayGates, kSoftTokens, kResidual };

// How the CUDA engine computes the scores: by its source's kernel, by a kernel of its own, or on the host
// from copies of what was captured.
enum class DeviceScores : uint8_t { kHost, kOfSource, kKeyNorms, kKeyAngles };

// Operations per KV entry, as if one kernel computed them for all heads of a layer. What every scorer of a
// source costs alike follows from the source (scenarios/app/compression_work.cc).
struct ScoreWork {
  uint32_t entry_reads = 0;  // kEntries: how often half of an entry (its key or its value) is read
  uint32_t gate_width = 0;   // kGates: outputs of the gate; per query and KV head, if gate_per_head
  bool gate_per_head = false;
  uint32_t key_products = 0;  // products of a key with each other key of its head
};

// An option of a scorer: a field of policies.scorer_options in traces/proto/scenario.proto, which documents
// it. Values are numbers; a choice is the index of its name, a boolean 0 or 1.
struct ScorerOption {
  std::string_view field;
  double low = 0, high = 0;
  double (*get)(const ScoreSpec&) = nullptr;
  void (*set)(ScoreSpec*, double) = nullptr;
  std::span<const std::string_view> choices{};
  bool odd = false;
};

struct ScorerDefinition {
  std::string_view name;
  ScoreSource source = ScoreSource::kPositions;
  uint32_t captures = 0;
  // out [H][T]; [H][T - sinks] for kRepeats; [1][T] for kSessionMemory. REQUIRES: what `captures` lists is
  // there.
  void (*score)(const ScoreSpec&, const ScoreInputs&, ScoreView out) = nullptr;
  std::span<const ScorerOption> options{};
  void (*set_defaults)(ScoreSpec*) = nullptr;  // published values that differ from those of ScoreSpec
  // The heads of a layer are scored together and must hold equally many entries.
  bool joins_heads = false;
  // Every decoded token changes the scores (H2O's sums, RaaS's stamps, TOVA's last row).
  bool watches_decodes = false;
  TrainedWeights weights = TrainedWeights::kNone;
  DeviceScores device = DeviceScores::kHost;
  ScoreWork work{};

  bool captures_any(uint32_t bits) const { return (captures & bits) != 0; }
  // One score per token for all layers and heads: `score` adds a layer's part, finish_scores() completes it.
  bool scores_tokens() const { return source == ScoreSource::kSessionMemory; }
  bool by_position() const { return source == ScoreSource::kPositions || source == ScoreSource::kDraws; }
};

// All scorers. The first, "none", ranks nothing.
std::span<const ScorerDefinition* const> all_scorers();
// The scorer with this name in a scenario; nullptr: there is none.
const ScorerDefinition* find_scorer(std::string_view name);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORER_H_
