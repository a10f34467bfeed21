// The best pages (or tokens) of one head, by one CTA: pooled scores of its query heads, and exact top-k in
// the order of select.h.

#ifndef KVTWIN_KERNELS_SELECT_BEST_PAGES_CUH_
#define KVTWIN_KERNELS_SELECT_BEST_PAGES_CUH_

#include "kernels/common/block_sum.cuh"
#include "kernels/select/page_choice.h"

namespace kvtwin::device {

constexpr uint32_t kChoiceThreads = 256, kChoiceWarps = kChoiceThreads / 32;

// order_key's upper half (select.h): larger is better, NaN as -inf.
__device__ inline uint32_t ordered(float score) {
  const uint32_t bits = __float_as_uint(score != score ? -INFINITY : score);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

struct Sum {
  __device__ static float join(float a, float b) { return a + b; }
};
struct Largest {
  __device__ static float join(float a, float b) { return fmaxf(a, b); }
};

// Shared memory of a CTA that chooses.
struct BestPages {
  float parts[kChoiceWarps];
  uint32_t sums[kChoiceWarps];
  uint32_t histogram[256];
  uint32_t digit, above;  // of the current radix pass
};

// Reduces over all threads in one fixed order and returns the result to all of them.
template <typename Join>
__device__ float over_all(BestPages& shared, float value) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) value = Join::join(value, __shfl_xor_sync(kAllLanes, value, by));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.parts[threadIdx.x / 32] = value;
  __syncthreads();
  float out = shared.parts[0];
  for (uint32_t w = 1; w < kChoiceWarps; ++w) out = Join::join(out, shared.parts[w]);
  return out;
}

// Pools the group's scores into those of the first query head. Each thread has its own pages.
__device__ inline void pool(const ChoiceShape& shape, BestPages& shared, float* scores, uint32_t pages) {
  const uint32_t rows = shape.score_rows();
  const bool softmax = shape.softmax();
  if (rows == 1 && !softmax) return;
  float most[8], by[8];
#pragma unroll
  for (uint32_t g = 0; g < 8; ++g) {
    if (g >= rows || !softmax) continue;
    const float* const own = scores + size_t{g} * shape.score_stride;
    float top = -INFINITY, sum = 0;
    for (uint32_t p = threadIdx.x; p < pages; p += kChoiceThreads) top = fmaxf(top, own[p] * shape.scale);
    top = over_all<Largest>(shared, top);
    for (uint32_t p = threadIdx.x; p < pages; p += kChoiceThreads) sum += expf(own[p] * shape.scale - top);
    most[g] = top, by[g] = 1 / over_all<Sum>(shared, sum);
  }
  const bool largest =
      shape.pooling == kernels::PagePooling::kMaxS || shape.pooling == kernels::PagePooling::kMaxQk;
  for (uint32_t p = threadIdx.x; p < pages; p += kChoiceThreads) {
    float pooled = 0;
#pragma unroll
    for (uint32_t g = 0; g < 8; ++g) {
      if (g >= rows) break;
      float one = scores[size_t{g} * shape.score_stride + p];
      if (softmax) one = expf(one * shape.scale - most[g]) * by[g];
      pooled = g == 0 ? one : largest ? fmaxf(pooled, one) : pooled + one;
    }
    scores[p] = largest ? pooled : pooled / static_cast<float>(rows);
  }
}

// The key of rank `wanted` (from 1, from the largest), and the number of larger keys: radix selection, eight
// bits per pass.
struct Threshold {
  uint32_t key = 0, larger = 0;
};
__device__ inline Threshold threshold(BestPages& shared, const float* scores, uint32_t pages,
                                      uint32_t wanted) {
  Threshold out;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    shared.histogram[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t known = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
    for (uint32_t p = threadIdx.x; p < pages; p += kChoiceThreads) {
      const uint32_t key = ordered(scores[p]);
      if (((key ^ out.key) & known) == 0) atomicAdd(&shared.histogram[key >> shift & 255], 1);
    }
    __syncthreads();
    // Descending digits, one per thread: finds the digit that has the rank.
    const uint32_t digit = 255 - threadIdx.x, own = shared.histogram[digit], left = wanted - out.larger;
    uint32_t all;
    const uint32_t above = sum_before<kChoiceWarps>(own, shared.sums, &all);
    if (above < left && left <= above + own) shared.digit = digit, shared.above = above;
    __syncthreads();
    out.key |= shared.digit << shift, out.larger += shared.above;
  }
  return out;
}

// chosen[0, count): the best pages, ascending; of equal scores the later pages.
__device__ inline void choose(BestPages& shared, const float* scores, uint32_t pages, uint32_t count,
                              uint32_t* chosen) {
  const Threshold least = threshold(shared, scores, pages, count);
  const uint32_t each = (pages + kChoiceThreads - 1) / kChoiceThreads;
  const uint32_t first = min(threadIdx.x * each, pages), end = min(first + each, pages);
  uint32_t larger = 0, equal = 0, all_larger, all_equal;
  for (uint32_t p = first; p < end; ++p) {
    const uint32_t key = ordered(scores[p]);
    larger += key > least.key, equal += key == least.key;
  }
  larger = sum_before<kChoiceWarps>(larger, shared.sums, &all_larger),
  equal = sum_before<kChoiceWarps>(equal, shared.sums, &all_equal);
  const uint32_t left_out =
      all_equal - (count - least.larger);  // of the pages with the threshold key, the first are left out
  for (uint32_t p = first; p < end; ++p) {
    const uint32_t key = ordered(scores[p]);
    if (key < least.key) continue;
    if (key > least.key || equal >= left_out) chosen[larger + (equal > left_out ? equal - left_out : 0)] = p;
    larger += key > least.key, equal += key == least.key;
  }
  __syncthreads();
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SELECT_BEST_PAGES_CUH_
