// Scores of pages for the G query heads of one KV head, from the pages' summaries only.
//
//   u_g[p] = sum_i max(q_g[i] * high_p[i], q_g[i] * low_p[i])
// pooled over the G heads (docs/design/methods/freekv.md#page-scores, and table 5 of FreeKV's paper):
//   kMeanQ, kMaxQ    u of the mean | the channel-wise largest query
//   kMeanQk, kMaxQk  mean | largest of u_g
//   kMeanS, kMaxS    mean | largest of softmax over the pages of scale * u_g
// The scale matters only before a softmax. Higher scores are chosen; ties: the later page (select.h).
// Cost: O(G * pages * dim).

#ifndef KVTWIN_KERNELS_SELECT_PAGE_SCORE_H_
#define KVTWIN_KERNELS_SELECT_PAGE_SCORE_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvtwin::kernels {

enum class PagePooling : uint8_t { kMeanS, kMaxS, kMeanQk, kMaxQk, kMeanQ, kMaxQ };

// The two vectors of a summary, [dim] each: page_summary.h.
struct PageVectors {
  const float* high = nullptr;
  const float* low = nullptr;
};

// q [group][dim], rotated; scores [pages.size()]. Order of sums as in wide.h, exponentials as in exact_exp.h.
void score_pages_ref(PagePooling pooling, float scale, const float* q, uint32_t group, uint32_t dim,
                     std::span<const PageVectors> pages, float* scores);

// Similarity of two queries of one KV head: the mean over the G query heads of cos(q_g, before_g)
// (docs/design/methods/freekv.md#step, C[h]). In [-1, 1]; a zero vector gives 0. q, before [group][dim].
float group_cosine_ref(const float* q, const float* before, uint32_t group, uint32_t dim);

// One slot of a KV head that is overwritten; slots[s] is the page in slot s.
struct SlotChange {
  uint32_t slot = 0;
  uint32_t page = 0;  // its new page
};

// Makes the slots hold every page of `chosen`. Missing pages, in ascending order, replace the pages with the
// lowest current scores (ties: the earlier page) among those that are not chosen. If there are as many slots
// as chosen pages, the two sets are equal afterwards and the moves are their difference. scores[p - first] is
// the score of page p; a page in a slot without a score (before `first`, or after the last score) is replaced
// first. REQUIRES: chosen ascends, has at most slots.size() pages, all with scores.
std::vector<SlotChange> replace_slots_ref(std::span<const uint32_t> chosen, std::span<const float> scores,
                                          uint32_t first, std::span<uint32_t> slots);

// The forced recall of one KV head of a decode (engine/common/forced_outcome.h), independent of its query.
struct HeadRecall {
  uint32_t missing = 0;  // pages to recall
  uint8_t before =
      0;  // not 0: recalled before attention; 0: attention reads the slots as they are and the recall follows
  uint8_t turned = 0;  // not 0: counted as corrected
};

// Changes the scores so that the best slots.size() pages are the pages in the slots, except that the
// `missing` worst of them (ranked as in replace_slots_ref) are exchanged for as many of the best other pages.
// Pages that stay in their slots get +inf, replaced ones -inf. A page in a slot without a score is replaced
// in any case. REQUIRES: there are enough other pages.
void force_missing_ref(std::span<float> scores, uint32_t first, std::span<const uint32_t> slots,
                       uint32_t missing);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SELECT_PAGE_SCORE_H_
