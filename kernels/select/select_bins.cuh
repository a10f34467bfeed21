// Where ranks fall in a histogram of keys, and between which scores a rank of many rows lies by a sample.

#ifndef KVTWIN_KERNELS_SELECT_SELECT_BINS_CUH_
#define KVTWIN_KERNELS_SELECT_SELECT_BINS_CUH_

#include "kernels/common/block_sum.cuh"
#include "kernels/select/select_ranks.cuh"

namespace kvtwin::device {

constexpr uint32_t kBins = 1024, kBinBits = 10;

// By how much keys of that many bits are shifted to become bin numbers.
__device__ inline int bin_shift(int bits) { return max(bits - static_cast<int>(kBinBits), 0); }
__device__ inline int bits_of(uint32_t number) { return 32 - __clz(static_cast<int>(number)); }

// Adds one to a word of shared memory.
__device__ __forceinline__ void count_up(uint32_t at) {
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(at) : "memory");
}

template <uint32_t kRanks>
struct BinSearch {
  uint32_t bin[kRanks];
  uint32_t left[kRanks];   // the rank among the bin's keys, from 1, from the largest
  uint32_t count[kRanks];  // of the bin
};

// The bins in which ranks fall (from 1, from the largest key); `counts` are zeros afterwards.
// REQUIRES: counts are complete, behind a barrier; at least as many keys as the largest rank. All threads.
template <uint32_t kThreads, uint32_t kRanks>
__device__ void find_bins(uint32_t (&counts)[kBins], const uint32_t (&ranks)[kRanks], uint32_t* sums,
                          BinSearch<kRanks>& found) {
  constexpr uint32_t kEach = kBins / kThreads;
  static_assert(kEach * kThreads == kBins);
  const uint32_t first = kBins - (threadIdx.x + 1) * kEach;
  uint32_t own[kEach], sum = 0, all;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) sum += own[i] = counts[first + i];
  uint32_t passed = sum_before<kThreads / 32>(sum, sums, &all);
#pragma unroll
  for (uint32_t i = kEach; i-- > 0;) {
#pragma unroll
    for (uint32_t r = 0; r < kRanks; ++r) {
      if (ranks[r] > passed && ranks[r] <= passed + own[i])
        found.bin[r] = first + i, found.left[r] = ranks[r] - passed, found.count[r] = own[i];
    }
    passed += own[i];
    counts[first + i] = 0;
  }
  __syncthreads();
}

// Scores above `high` stay; what is neither above it nor below `low` is listed (NaN is: its rank is -inf's).
struct Bracket {
  float low = -INFINITY, high = INFINITY;
};

// Keys of listed rows as numbers from 1, so that few bits are left. What is no number ranks as -inf does: as
// 1 if that is listed, else as 0, behind all.
struct NearKeys {
  uint32_t before, top, none;

  __device__ explicit NearKeys(const Bracket& b)
      : before(key_of(b.low == 0 ? -0.0f : b.low) - 1),
        top(key_of(b.high == 0 ? 0.0f : b.high) - before),
        none(b.low == -INFINITY ? 1 : 0) {}
  __device__ __forceinline__ uint32_t operator()(float score) const {
    const uint32_t bits = __float_as_uint(score);
    const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int>(bits) >> 31) | 0x80000000u);
    return key - before <= top ? key - before : none;  // NaNs have keys beyond both infinities
  }
  __device__ int bits() const { return bits_of(top); }
};

// A sample of the candidates' keys: `mine` of each thread, at own[0], own[kThreads], ...; 0: not a candidate.
struct Sample {
  const uint32_t* own;
  uint32_t mine;
};
struct SampleSearch {
  uint32_t least = kAllLanes, largest = 0, size = 0;
  BinSearch<2> bins;
};

// Between which scores the one of rank `wanted` of `candidates` is. Four and a half times the sample's
// deviation off: beyond that once in 100,000 heads. All threads; `s` as it is made, behind a barrier.
template <uint32_t kThreads>
__device__ Bracket bracket_of(const Sample& sample, uint32_t wanted, uint32_t candidates,
                              uint32_t (&counts)[kBins], uint32_t* sums, SampleSearch& s) {
  uint32_t least = kAllLanes, largest = 0, size = 0;
  for (uint32_t i = 0; i < sample.mine; ++i) {
    const uint32_t key = sample.own[i * kThreads];
    if (key != 0) least = min(least, key), largest = max(largest, key), ++size;
  }
  least = __reduce_min_sync(kAllLanes, least), largest = __reduce_max_sync(kAllLanes, largest);
  size = __reduce_add_sync(kAllLanes, size);
  if (threadIdx.x % 32 == 0 && size > 0)
    atomicMin(&s.least, least), atomicMax(&s.largest, largest), atomicAdd(&s.size, size);
  __syncthreads();
  least = s.least, largest = s.largest, size = s.size;
  Bracket out;
  if (size == 0) return out;
  const float all = static_cast<float>(size);
  const float part = __fdividef(static_cast<float>(wanted), static_cast<float>(candidates));
  const float middle = all * part, variance = fmaxf(middle * (1 - part), 1e-3f);
  const float reach = 4.5f * variance * rsqrtf(variance) + 2;
  const float above = middle - reach, below = middle + reach + 1;
  uint32_t ranks[2] = {static_cast<uint32_t>(fmaxf(above, 1)), static_cast<uint32_t>(fminf(below, all))};
  const uint32_t enough = ranks[1] - ranks[0] + size / 16;
  // Rounds: where most keys lie in few bins (scores of one size and infinities), those bins alone again.
  for (int round = 0;; ++round) {
    const int shift = bin_shift(bits_of(largest - least));
    for (uint32_t i = 0; i < sample.mine; ++i) {
      const uint32_t key = sample.own[i * kThreads];
      if (key != 0 && key >= least && key <= largest) atomicAdd(&counts[(key - least) >> shift], 1);
    }
    __syncthreads();
    find_bins<kThreads>(counts, ranks, sums, s.bins);
    const BinSearch<2> found = s.bins;
    // From the lowest key of the lower rank's bin to the highest one of the upper rank's.
    const uint32_t end = least + (found.bin[0] << shift) + ((1u << shift) - 1);
    const uint32_t upper = end < least ? largest : min(end, largest);
    const uint32_t lower = least + (found.bin[1] << shift);
    const uint32_t within = ranks[1] - ranks[0] + found.left[0] + found.count[1] - found.left[1];
    if (within <= enough || shift == 0 || round == 2 || (lower == least && upper == largest)) {
      if (above >= 1) out.high = score_of(min(upper, kLargestKey));
      if (below <= all) out.low = score_of(lower);
      return out;
    }
    const uint32_t passed = ranks[0] - found.left[0];  // keys above `upper`
    ranks[0] -= passed, ranks[1] -= passed;
    least = lower, largest = upper;
    __syncthreads();  // s.bins has been read by all
  }
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SELECT_SELECT_BINS_CUH_
