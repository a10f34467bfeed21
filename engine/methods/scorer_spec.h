// ScorerSpec holds the integers of a scorer: when it works and what it adds to a step. Its floating-point
// parameters (smoothing, gates, decays) belong to the backend (kernels/scoring/score.h). Sinks and window,
// which are always retained, belong to the budget.

#ifndef KVTWIN_ENGINE_METHODS_SCORER_SPEC_H_
#define KVTWIN_ENGINE_METHODS_SCORER_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvtwin {

// When a policy changes the set of retained KV entries (docs/design/methods/composition.md#causality).
enum class CompressionTrigger : uint8_t { kAtNoTime, kChunkEnd, kPromptEnd, kTurnStart, kDecodeStep };

struct ScorerSpec {
  std::optional<CompressionTrigger> compression_trigger;  // absent: the scorer's own
  uint32_t query_tokens = 0;  // tokens whose queries are captured; 0: the scorer's own. Used by prices
  uint32_t probe_tokens = 0;  // Judge Q: soft tokens after the prompt; 0: the scorer's own
  // Window scorers at chunk ends: the last tokens of a chunk are ranked with that chunk and not carried into
  // the next. Only then do the KV entries retained of a prefix depend on that prefix alone
  // (docs/design/methods/composition.md#causality).
  bool window_closed = false;
  // KVzip's second pass: the context in parts, each repeated after an instruction and the end of the part
  // before it.
  uint32_t repeat_tokens = 2'048;
  uint32_t repeat_tail = 8;
  uint32_t repeat_instruction = 16;

  friend bool operator==(const ScorerSpec&, const ScorerSpec&) = default;
};

// Returns one sentence that explains why the scorer cannot work with `spec`, and a remedy; nullopt: it can.
// REQUIRES, here and below: the name is known (registry.h).
std::optional<std::string> validate_scorer(std::string_view name, const ScorerSpec& spec);

// Query tokens per layer that scoring one request reads: those of the window, or probe tokens. 0: none, or
// all scored tokens (H2O, Expected Attention), which needs no count.
uint32_t captured_queries(std::string_view name, const ScorerSpec& spec);

// Whether passes of probe tokens precede the scorer's compressions (probe_passes.h). False if the name is
// unknown.
bool runs_passes(std::string_view name);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_SCORER_SPEC_H_
