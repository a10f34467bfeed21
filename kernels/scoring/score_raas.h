// RaaS (docs/design/methods/uniform.md#raas): drops pages in order of the time at which they were last
// *important*.
//
// State per page and KV head: the last step at which the page's attention, estimated from its summary
// (channel-wise min and max of its keys), exceeded alpha; and that summary.
// Shapes: q [Hq][1][d] (this step), key_min, key_max [H][pages][d], stamps [H][pages].
// Cost: O(Hq * pages * d) per step; memory O(H * pages * d). Source: the released accuracy harness of FreeKV.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_RAAS_H_
#define KVTWIN_KERNELS_SCORING_SCORE_RAAS_H_

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/common/view.h"

namespace kvtwin::kernels {

struct RaasSpec {
  float alpha = 1e-4f;
  bool scaled = false;  // divide by sqrt(d) before the softmax; the released code does not
};

// a[h][page] = mean over h's query heads of softmax over pages of sum_i max(q_i min_i, q_i max_i). The sum is
// an upper bound on q.K for every key of the page.
void raas_attention(const RaasSpec& spec, const HeadsView& q, const HeadsView& key_min,
                    const HeadsView& key_max, ScoreView attention);

// Updates the stamps of one head at step `now`: pages with attention above alpha are stamped.
void raas_touch(const RaasSpec& spec, std::span<const float> attention, uint32_t now,
                std::span<uint32_t> stamps);

// Stamps as scores of KV entries: row i is in page i / page_tokens. Exact to 2^24 steps. With the total order
// of select.h the lowest row of equal stamps is dropped first.
void score_raas(std::span<const uint32_t> stamps, uint32_t page_tokens, std::span<float> out);

// For a prompt longer than the budget: the released harness retains the KV entries with the largest q . K of
// the last query, averaged over the G query heads. q [Hq][rows][d]: the last row counts.
void score_raas_prompt(const HeadsView& q, const HeadsView& k, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_RAAS_H_
