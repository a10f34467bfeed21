// Radix selection by all threads of a CTA: the keys of given ranks, eight bits per round, starting at the
// highest bit that any key has. The digits of the first round therefore spread over the histogram, and the
// lanes of a warp rarely increment the same bin.

#ifndef KVTWIN_KERNELS_SELECT_SELECT_RANKS_CUH_
#define KVTWIN_KERNELS_SELECT_SELECT_RANKS_CUH_

#include <cmath>

#include "kernels/common/cuda_primitives.cuh"

namespace kvtwin::device {

constexpr uint32_t kDigits = 256;

// Ordered as the score (select.h, order_key's upper half): larger is retained first, NaN counts as -inf. Keys
// are between kLeastKey, that of -inf, and kLargestKey.
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
  alignas(16) uint32_t histogram[kRanks][kDigits];  // zero before and after a search
  uint32_t prefix[kRanks];  // the known high bits of the rank's key; 0 before a search
  uint32_t left[kRanks];  // before a search the rank, from 1, from the largest; then the rank among keys with
                          // this prefix
  uint32_t equal[kRanks];  // number of keys with this prefix
};

template <uint32_t kRanks>
__device__ void clear(RankSearch<kRanks>& s, uint32_t threads) {
  for (uint32_t i = threadIdx.x; i < kRanks * kDigits; i += threads)
    s.histogram[i / kDigits][i % kDigits] = 0;
}

// Finds the digit in which the rank falls; called by one warp. A lane has eight digits, in descending order,
// and clears them.
template <uint32_t kRanks>
__device__ void low_bit(RankSearch<kRanks>& s, uint32_t r, int width) {
  constexpr uint32_t kEach = kDigits / 32;
  const uint32_t lane = threadIdx.x % 32, first = kDigits - (lane + 1) * kEach;
  auto* const digits = reinterpret_cast<uint4*>(&s.histogram[r][first]);
  const uint4 low = digits[0], high = digits[1];
  digits[0] = digits[1] = uint4{};
  const uint32_t count[kEach] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
  uint32_t sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) sum += count[i];
  uint32_t until = sum;
#pragma unroll
  for (uint32_t by = 1; by < 32; by *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, until, by);
    if (lane >= by) until += other;
  }
  const uint32_t left = s.left[r];
  uint32_t passed = until - sum;
  __syncwarp();
  if (left <= passed || left > until) return;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    if (left > passed && left <= passed + count[i]) {
      s.prefix[r] = s.prefix[r] << width | (first + kEach - 1 - i);
      s.left[r] = left - passed, s.equal[r] = count[i];
    }
    passed += count[i];
  }
}

// Searches the ranks; returns the number of bits that remain unknown: the rank's key is prefix << bits |
// rest.
//
// Keys are those of [0, count) for which take(i, &key) returns true; they are below 1 << bits. The search
// stops once at most `enough` keys have the prefix, for each rank. REQUIRES: as many keys as the largest
// rank; s.left is set and the histogram cleared, visible to all threads. Called by all threads of a CTA of
// kThreads.
template <uint32_t kThreads, uint32_t kRanks, typename Take>
__device__ int find_ranks(RankSearch<kRanks>& s, uint32_t count, int bits, uint32_t enough,
                          const Take& take) {
  uint32_t prefix[kRanks] = {};
  while (bits > 0) {
    const int width = bits < 8 ? bits : 8, until = bits;
    bits -= width;
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
      uint32_t key;
      if (!take(i, &key)) continue;
#pragma unroll
      for (uint32_t r = 0; r < kRanks; ++r) {
        if (static_cast<uint32_t>(uint64_t{key} >> until) == prefix[r])
          atomicAdd(&s.histogram[r][key >> bits & ((1u << width) - 1)], 1);
      }
    }
    __syncthreads();
    if (threadIdx.x / 32 < kRanks) low_bit(s, threadIdx.x / 32, width);
    __syncthreads();
    bool found = true;
#pragma unroll
    for (uint32_t r = 0; r < kRanks; ++r) prefix[r] = s.prefix[r], found = found && s.equal[r] <= enough;
    if (found) break;
  }
  return bits;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SELECT_SELECT_RANKS_CUH_
