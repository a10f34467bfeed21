// Histograms of keys: the bins in which ranks fall, and a bracket of scores around a rank, from a sample.

#ifndef KVTWIN_KERNELS_SELECT_SELECT_BINS_CUH_
#define KVTWIN_KERNELS_SELECT_SELECT_BINS_CUH_

#include "kernels/common/block_sum.cuh"
#include "kernels/select/select_ranks.cuh"

namespace kvtwin::device {

constexpr uint32_t kBins = 1024, kBinBits = 10;

// Shift that maps keys of `bits` bits to bins.
__device__ inline int bin_shift(int bits) { return max(bits - static_cast<int>(kBinBits), 0); }
__device__ inline int bits_of(uint32_t number) { return 32 - __clz(static_cast<int>(number)); }

// Increments a word of shared memory.
__device__ __forceinline__ void count_up(uint32_t at) {
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(at) : "memory");
}

template <uint32_t kRanks>
struct BinSearch {
  uint32_t bin[kRanks];
  uint32_t left[kRanks];   // the rank among the bin's keys, from 1, from the largest
  uint32_t count[kRanks];  // keys of the bin
};

// Finds the bins in which ranks fall (from 1, from the largest key) and clears `counts`. Called by all
// threads. REQUIRES: counts are complete and a barrier has followed; there are at least as many keys as the
// largest rank.
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

// Scores above `high` are retained; scores in [low, high] are listed. NaN counts as -inf.
struct Bracket {
  float low = -INFINITY, high = INFINITY;
};

// Keys of listed rows, numbered from 1 so that they have few bits. NaN ranks as -inf: key 1 if -inf is
// listed, otherwise 0, which is behind all.
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

// Brackets the score of rank `wanted` among `candidates`, with a margin of 4.5 standard deviations of the
// sample, which fails once in 100,000 heads. Called by all threads; `s` is in its initial state and a barrier
// has followed.
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
  // If most keys fall in few bins (scores of one magnitude and infinities), these bins are refined in another
  // round.
  for (int round = 0;; ++round) {
    const int shift = bin_shift(bits_of(largest - least));
    for (uint32_t i = 0; i < sample.mine; ++i) {
      const uint32_t key = sample.own[i * kThreads];
      if (key != 0 && key >= least && key <= largest) atomicAdd(&counts[(key - least) >> shift], 1);
    }
    __syncthreads();
    find_bins<kThreads>(counts, ranks, sums, s.bins);
    const BinSearch<2> found = s.bins;
    // From the lowest key of the lower rank's bin to the highest key of the upper rank's bin.
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
    __syncthreads();  // all threads have read s.bins
  }
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SELECT_SELECT_BINS_CUH_
