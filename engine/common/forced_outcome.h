// What is forced (engine/runtime/forced_outcomes.h), as engines need it: for the CPU's and the GPU's alike.
//
// A layer's recalls are told as sums over a step's requests and KV heads (LayerRecall), but a head has to
// know what it does itself: the sums are shared out evenly.

#ifndef KVTWIN_ENGINE_COMMON_FORCED_OUTCOME_H_
#define KVTWIN_ENGINE_COMMON_FORCED_OUTCOME_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/runtime/forced_outcomes.h"
#include "kernels/select/page_score.h"

namespace kvtwin::cpu {

// One request that chooses pages in the step.
struct ForcedRow {
  bool trusts = false;  // it has chosen before: heads that are not corrected read what they hold
  uint32_t most = 0;    // pages that one of its heads can miss
};

// out [rows.size()][kv_heads]. `follows`: what a head misses may come after attention (speculation).
//
// `corrected` heads, of those that trust, recall before attention, and so do all that do not trust:
// `blocking` is theirs. `background` is the others'. Where that cannot be (a model that knows no first step
// says that more heads are corrected, or more comes behind attention, than trusting heads allow) all count as
// trusting. Shares differ by one page at most, but for heads that cannot miss so many.
void deal_recall(const LayerRecall& given, std::span<const ForcedRow> rows, uint32_t kv_heads, bool follows,
                 std::span<kernels::HeadRecall> out);

// Where KV entries keep their places: the rows that stay, of the rows at `positions`. `live` as in
// CompressionOutcome; `forced` rows stay in any case. Empty: other than `count` would be left, which the
// policy does not expect.
std::vector<uint32_t> forced_outcome_rows(std::span<const uint64_t> live, std::span<const uint32_t> positions,
                                          std::span<const uint32_t> forced, size_t count);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_FORCED_OUTCOME_H_
