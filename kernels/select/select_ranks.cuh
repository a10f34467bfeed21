// Keys of given ranks among many, found by all threads of a CTA: radix selection, eight bits a round, from
// the highest bit that any key has. So digits of the first round are spread over the histogram, and lanes of
// a warp seldom add to the same one.

#ifndef KVTWIN_KERNELS_SELECT_SELECT_RANKS_CUH_
#define KVTWIN_KERNELS_SELECT_SELECT_RANKS_CUH_

#include <cmath>

#include "kernels/common/cuda_primitives.cuh"

namespace kvtwin::device {

constexpr uint32_t kDigits = 256;

// Orders like the score (select.h, order_key's upper half): larger is kept first, NaN counts as -inf. No
// score has a key below kLeastKey, that of -inf, or above kLargestKey.
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
  alignas(16) uint32_t histogram[kRanks][kDigits];  // zeros before a search, and after it
  uint32_t prefix[kRanks];  // the bits that are known of the rank's key: 0 before a search
  uint32_t left[kRanks];    // before a search: the rank, from 1, from the largest; then: among equal prefixes
  uint32_t equal[kRanks];   // how many have that prefix
};

template <uint32_t kRanks>
__device__ void clear(RankSearch<kRanks>& s, uint32_t threads) {
  for (uint32_t i = threadIdx.x; i < kRanks * kDigits; i += threads)
    s.histogram[i / kDigits][i % kDigits] = 0;
}

// One warp: the digit in which the rank falls. A lane has eight digits, from the largest on, and clears them.
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

// Where a search stopped: the rank's key is prefix << bits, plus the remaining bits.
//
// Keys are those of [0, count) that take(i, &key) has (true, if there is one), below 1 << bits. It stops when
// no more than `enough` keys have the prefix, for each rank. s.left is set, the histogram cleared, both seen
// by all threads. REQUIRES: as many keys as the largest rank. All threads of a CTA of kThreads together.
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
