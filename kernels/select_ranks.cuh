// Keys of given ranks among many, found by all threads of a CTA: radix selection, eight bits a round.

#ifndef KVTWIN_KERNELS_SELECT_RANKS_CUH_
#define KVTWIN_KERNELS_SELECT_RANKS_CUH_

#include <cmath>

#include "kernels/cuda_primitives.cuh"

namespace kvtwin::device {

constexpr uint32_t kDigits = 256;

// Orders like the score (select.h, order_key's upper half): larger is kept first, NaN counts as -inf. No
// score has a key below kLeastKey, that of -inf.
constexpr uint32_t kLeastKey = 0x007fffffu, kLargestKey = 0xff800000u;
__device__ inline uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(isnan(score) ? -INFINITY : score);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float score_of(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key ^ 0x80000000u : ~key);
}

template <uint32_t kRanks>
struct RankSearch {
  uint32_t histogram[kRanks][kDigits];
  uint32_t key[kRanks];    // of the rank
  uint32_t left[kRanks];   // before the search: the rank, from 1, from the largest; then: among equal keys
  uint32_t equal[kRanks];  // how many have that key
};

// One warp: the digit in which the rank falls. A lane has eight digits, from the largest on.
template <uint32_t kRanks>
__device__ void narrow(RankSearch<kRanks>& s, uint32_t r, int shift) {
  constexpr uint32_t kEach = kDigits / 32;
  const uint32_t lane = threadIdx.x % 32, first = kDigits - 1 - lane * kEach;
  uint32_t count[kEach], sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) sum += count[i] = s.histogram[r][first - i];
  uint32_t until = sum;
#pragma unroll
  for (uint32_t by = 1; by < 32; by *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, until, by);
    if (lane >= by) until += other;
  }
  const uint32_t left = s.left[r], before = until - sum;
  __syncwarp();
  if (left <= before || left > until) return;
  uint32_t passed = before;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    if (left > passed && left <= passed + count[i]) {
      s.key[r] |= (first - i) << shift;
      s.left[r] = left - passed, s.equal[r] = count[i];
    }
    passed += count[i];
  }
}

// What s.left[r] asks for, among the keys of [0, count) that take(i, &key) has: true, if there is one. No key
// has bits at `top` + 8 or above; `top` is a multiple of eight. s.left is set, and seen by all threads.
// REQUIRES: as many keys as the largest rank. All threads of a CTA of kThreads together.
template <uint32_t kThreads, uint32_t kRanks, typename Take>
__device__ void find_ranks(RankSearch<kRanks>& s, uint32_t count, int top, const Take& take) {
  if (threadIdx.x < kRanks) s.key[threadIdx.x] = 0;
  for (int shift = top; shift >= 0; shift -= 8) {
    for (uint32_t i = threadIdx.x; i < kRanks * kDigits; i += kThreads)
      s.histogram[i / kDigits][i % kDigits] = 0;
    __syncthreads();
    uint32_t known[kRanks];
#pragma unroll
    for (uint32_t r = 0; r < kRanks; ++r) known[r] = s.key[r] >> shift >> 8;
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
      uint32_t key;
      if (!take(i, &key)) continue;
#pragma unroll
      for (uint32_t r = 0; r < kRanks; ++r) {
        // Adding 1: the hardware counts lanes of equal digits at once.
        if (key >> shift >> 8 == known[r]) atomicAdd(&s.histogram[r][key >> shift & 255], 1);
      }
    }
    __syncthreads();
    if (threadIdx.x / 32 < kRanks) narrow(s, threadIdx.x / 32, shift);
    __syncthreads();
  }
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SELECT_RANKS_CUH_
