// The parts of the capability table (combinations.h), and the conditions that several rows have in common.

#ifndef KVTWIN_ENGINE_METHODS_COMBINATION_ROWS_H_
#define KVTWIN_ENGINE_METHODS_COMBINATION_ROWS_H_

#include <span>

#include "engine/methods/combinations.h"

namespace kvtwin {

// Rows that hold for every backend, and those of the engines, which compute values.
std::span<const CombinationRow> policy_rows();
std::span<const CombinationRow> engine_rows();

constexpr uint8_t bit_of(Computes where) { return uint8_t(1u << static_cast<unsigned>(where)); }
constexpr uint8_t kCudaOnly = bit_of(Computes::kCuda), kEngines = bit_of(Computes::kCpu) | kCudaOnly,
                  kEverywhere = bit_of(Computes::kSim) | kEngines;

namespace when {

using Given = const Combination&;

inline bool at_chunks(Given c) { return c.trigger == CompressionTrigger::kChunkEnd; }
inline bool at_prompt_end(Given c) { return c.trigger == CompressionTrigger::kPromptEnd; }
inline bool at_decodes(Given c) { return c.trigger == CompressionTrigger::kDecodeStep; }
inline bool at_turns(Given c) { return c.trigger == CompressionTrigger::kTurnStart; }
inline bool at_no_time(Given c) { return c.trigger == CompressionTrigger::kAtNoTime; }
// Whether prefixes are shared as checkpoints of compressed requests.
inline bool checkpoints(Given c) { return c.prefix_cache && !c.layout.keeps_slots; }
inline bool two_bits(Given c) { return c.precision.prompt_format == Format::kInt2; }
// Recall of retained KV entries. Resident pages are shared by all heads, so all heads must retain equally
// many KV entries. An offloaded page must not change, so everything is dropped at once, before the offload.
inline bool recalls_retained(Given c) {
  return c.chooses() && c.placement.uses_resident && c.layout.slot_retention != SlotRetention::kAll;
}
// Packed pages can be recalled whole: every KV entry is packed when it is stored, in one format.
inline bool recalls_packed(Given c) {
  return c.retrieval.kind == RetrievalKind::kRecallsPages && !c.drops() && !c.precision.by_tag &&
         c.precision.exact == ExactTokens::kNone;
}
inline bool compacts_all_heads(Given c) { return c.moves() && c.layout.keeps_phase && !c.layout.has_groups; }

}  // namespace when
}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_COMBINATION_ROWS_H_
