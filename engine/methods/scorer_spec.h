// The integers behind a scorer: when it works and what it adds to a step. Its values (smoothing, gates,
// decays) are the backend's (kernels/scoring/score.h). What always stays, sinks and window, is the budget's.

#ifndef KVTWIN_ENGINE_METHODS_SCORER_SPEC_H_
#define KVTWIN_ENGINE_METHODS_SCORER_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvtwin {

// When a policy changes which KV entries are kept (docs/design/methods/composition.md#causality,
// #interfaces).
enum class CompressionTrigger : uint8_t { kAtNoTime, kChunkEnd, kPromptEnd, kTurnStart, kDecodeStep };

struct ScorerSpec {
  std::optional<CompressionTrigger> compression_trigger;  // absent: the scorer's own
  uint32_t query_tokens = 0;  // rows whose queries are captured; 0: the scorer's own. Prices need it
  uint32_t probe_tokens = 0;  // Judge Q: soft tokens behind the prompt; 0: the scorer's own
  // Window scorers at chunk ends: the last rows of a chunk are ranked with that chunk, not carried into the
  // next. Only then do the KV entries kept of a prefix depend on that prefix alone
  // (docs/design/methods/composition.md#causality).
  bool window_closed = false;
  // KVzip's second pass: the context in pieces, each repeated behind an instruction and the end of the
  // piece before it.
  uint32_t repeat_tokens = 2'048;
  uint32_t repeat_tail = 8;
  uint32_t repeat_instruction = 16;

  friend bool operator==(const ScorerSpec&, const ScorerSpec&) = default;
};

// A sentence that says why this scorer cannot work so, and the way out; nullopt: it can.
// REQUIRES, here and below: the name is known (registry.h).
std::optional<std::string> validate_scorer(std::string_view name, const ScorerSpec& spec);

// Rows of queries that scoring one request takes per layer: of the window, or probe rows. 0: none, or all
// rows of what is scored (H2O, Expected Attention), which needs no count.
uint32_t captured_queries(std::string_view name, const ScorerSpec& spec);

// Extra rows of a pass over `context_tokens`, KVzip's cost: each piece behind an instruction, and but the
// first behind the end of the piece before it. 0 for other scorers.
uint64_t repeated_prompt_tokens(std::string_view name, const ScorerSpec& spec, uint32_t context_tokens);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_SCORER_SPEC_H_
