// Forced outcomes (engine/runtime/forced_outcomes.h) in the form that engines need, for the CPU and the GPU.
//
// The recalls of a layer are given as sums over a step's requests and KV heads (LayerRecall). deal_recall()
// divides the sums evenly among the heads.

#ifndef KVTWIN_ENGINE_COMMON_FORCED_OUTCOME_H_
#define KVTWIN_ENGINE_COMMON_FORCED_OUTCOME_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/runtime/forced_outcomes.h"
#include "kernels/select/page_score.h"

namespace kvtwin::cpu {

// One request that selects pages in the step.
struct ForcedRow {
  bool trusts = false;  // it has selected before: heads that are not corrected read their resident pages
  uint32_t most = 0;    // the largest number of pages that one of its heads can recall
};

// out [rows.size()][kv_heads]. `follows`: pages may be recalled after attention (speculation).
//
// `given.corrected` heads of requests that trust recall before attention, and so do all heads of requests
// that do not trust; `blocking` pages are divided among these, `background` pages among the other heads. If
// that is impossible (a model without a first step may give more corrected heads, or more background pages,
// than trusting heads allow), all requests count as trusting. The numbers of two heads differ by at most one
// page, unless a head cannot recall so many.
void deal_recall(const LayerRecall& given, std::span<const ForcedRow> rows, uint32_t kv_heads, bool follows,
                 std::span<kernels::HeadRecall> out);

// Layouts that keep slots: the indices in `positions` that are retained. `live` as in CompressionOutcome;
// `forced` indices are always retained. Empty if their number would not be `count`, which the policy expects.
std::vector<uint32_t> forced_outcome_rows(std::span<const uint64_t> live, std::span<const uint32_t> positions,
                                          std::span<const uint32_t> forced, size_t count);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_FORCED_OUTCOME_H_
