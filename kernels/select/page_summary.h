// Summaries of full pages: two vectors per KV head, computed from the page's exact keys, from which pages are
// chosen without being read.
//
//   min-max  high = max_t K, low = min_t K, channel by channel: a bound on q.K_t for every t (test F-1)
//   cuboid   c = (max + min) / 2, r = mean_t |c - K|; high = c + r, low = c - r: not a bound
//   mean     high = low = mean_t K (ShadowKV's landmark)
// Source: docs/design/methods/freekv.md#page-scores (FreeKV's paper; the released efficiency code, which is
// ArkVale's), #timelines.

#ifndef KVTWIN_KERNELS_SELECT_PAGE_SUMMARY_H_
#define KVTWIN_KERNELS_SELECT_PAGE_SUMMARY_H_

#include <cstdint>

namespace kvtwin::kernels {

enum class SummaryKind : uint8_t { kMinMax, kCuboid, kMean };

//   keys       [tokens][dim], after the rotation
//   high, low  [dim]
// fp32, sums in the order of t. REQUIRES: tokens > 0.
void summarise_page_ref(SummaryKind kind, const float* keys, uint32_t tokens, uint32_t dim, float* high,
                        float* low);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SELECT_PAGE_SUMMARY_H_
