// How much the G query heads of one KV head want each page, from the pages' summaries alone.
//
//   u_g[p] = sum_i max(q_g[i] * high_p[i], q_g[i] * low_p[i])
// and the G of them become one (docs/design/methods/freekv.md#page-scores, and table 5 of FreeKV's paper):
//   kMeanQ, kMaxQ    u of the mean | the channel-wise largest query
//   kMeanQk, kMaxQk  mean | largest of u_g
//   kMeanS, kMaxS    mean | largest of softmax over the pages of scale * u_g
// The scale matters only before a softmax. Higher is chosen; ties: the later page (select.h).
// Cost: O(G * pages * dim).

#ifndef KVTWIN_KERNELS_SELECT_PAGE_SCORE_H_
#define KVTWIN_KERNELS_SELECT_PAGE_SCORE_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvtwin::kernels {

enum class PagePooling : uint8_t { kMeanS, kMaxS, kMeanQk, kMaxQk, kMeanQ, kMaxQ };

// A summary, [dim] each: page_summary.h.
struct PageVectors {
  const float* high = nullptr;
  const float* low = nullptr;
};

// q [group][dim], rotated; scores [pages.size()]. Sums as in wide.h, exponentials as in exact_exp.h.
void score_pages_ref(PagePooling pooling, float scale, const float* q, uint32_t group, uint32_t dim,
                     std::span<const PageVectors> pages, float* scores);

// The mean over the G query heads of cos(q_g, before_g): how alike two queries of one KV head are
// (docs/design/methods/freekv.md#step, C[h]). In [-1, 1]; a zero vector is like nothing: 0. q, before
// [group][dim].
float group_cosine_ref(const float* q, const float* before, uint32_t group, uint32_t dim);

// The slots of one KV head's resident pages that can be overwritten: slots[s] is the page that slot s holds.
struct SlotChange {
  uint32_t slot = 0;
  uint32_t page = 0;  // what it holds from now on
};

// Makes the slots hold every page of `chosen`: what is missing, ascending, replaces the pages with the
// lowest current score (ties: the earlier page), and of those only pages that were not chosen. Where there
// are as many slots as chosen pages, the two sets are equal afterwards, and what moves is their difference.
// scores[p - first] is page p's; a page in a slot without a score (before `first`, or behind the scores) goes
// first. REQUIRES: chosen ascends, has at most slots.size() pages, all with scores.
std::vector<SlotChange> replace_slots_ref(std::span<const uint32_t> chosen, std::span<const float> scores,
                                          uint32_t first, std::span<uint32_t> slots);

// What one KV head of a decode does where that is forced (engine/common/forced_outcome.h), whatever its
// query.
struct HeadRecall {
  uint32_t missing = 0;  // pages that it recalls
  uint8_t before = 0;    // not 0: before attention; else it reads what it holds, and recalls behind it
  uint8_t turned = 0;    // not 0: it counts as corrected
};

// Changes the scores so that the best slots.size() pages are what the slots hold but for the `missing` worst
// of them (as replace_slots_ref ranks them), and as many of the best others: held pages that stay score inf,
// those that go -inf. A page in a slot without a score goes in any case. REQUIRES: there are that many
// others.
void force_missing_ref(std::span<float> scores, uint32_t first, std::span<const uint32_t> slots,
                       uint32_t missing);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SELECT_PAGE_SCORE_H_
