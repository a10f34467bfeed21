// Selection of one head by a CTA: the parts common to the fast and the exhaustive path, and the exhaustive
// path.

#ifndef KVTWIN_KERNELS_SELECT_SELECT_CHOICE_CUH_
#define KVTWIN_KERNELS_SELECT_SELECT_CHOICE_CUH_

#include "kernels/select/select_entries.h"
#include "kernels/select/select_tiles.cuh"

namespace kvtwin::device {

constexpr uint32_t kFew = 32;  // up to this many rows are ordered by comparing all pairs

// Shared memory after SelectShared: [ring][bits of retained rows][list][keys, if tiles are not resident].
struct SelectRoom {
  uint32_t words = 0, list = 0;
  uint32_t slots = 0;     // tiles of a warp in shared memory
  uint32_t ring = 0;      // bytes
  uint32_t rounds = 1;    // rounds of sampling if tiles are not resident: kSampleEach rows per thread each
  bool resident = false;  // all of a head's tiles fit at once: scores are read from the ring

  __host__ __device__ size_t bytes() const {
    return ring + sizeof(uint32_t) * (size_t{words} + (resident ? 1 : 2) * list);
  }
};

template <uint32_t kThreads>
struct SelectShared {
  alignas(16) uint32_t counts[kBins];
  RankSearch<1> one;
  BinSearch<1> bin;
  SampleSearch sample;
  uint64_t barriers[kThreads / 32][kSlotsMax];
  uint64_t few_keys[kFew];  // key, row
  uint32_t sums[kThreads / 32];
  uint32_t above, listed, few;
  uint32_t unordered;  // listed NaN rows, which rank behind rows that are not listed
};

// A predicated store, where the compiler would branch.
__device__ __forceinline__ void store_if(uint32_t condition, uint32_t* to, uint32_t value) {
  asm volatile(
      "{\n\t.reg .pred is;\n\tsetp.ne.u32 is, %0, 0;\n\t@is st.global.u32 [%1], %2;\n\t}" ::"r"(condition),
      "l"(to), "r"(value)
      : "memory");
}

template <uint32_t kThreads>
struct HeadChoice {
  static constexpr uint32_t kWarps = kThreads / 32;

  const SelectHead head;
  const RowRange* const forced;
  const float* const scores;
  SelectShared<kThreads>& s;
  const SelectRoom room;
  const uint32_t words;
  float* const ring;
  uint32_t* const retained;  // one bit per row
  uint32_t* const list;      // rows; before that, the sample
  float* const listed_scores;

  __device__ HeadChoice(const SelectArgs& args, const SelectRoom& space, SelectShared<kThreads>& shared,
                        char* memory)
      : head(args.heads[blockIdx.x]),
        forced(args.forced + head.forced_first),
        scores(args.scores + blockIdx.x * args.stride),
        s(shared),
        room(space),
        words((head.rows + 31) / 32),
        ring(reinterpret_cast<float*>(memory)),
        retained(reinterpret_cast<uint32_t*>(memory + space.ring)),
        list(retained + space.words),
        listed_scores(reinterpret_cast<float*>(list + space.list)) {}

  __device__ uint32_t valid(uint32_t word) const {
    if (word >= words) return 0;
    return head.rows - word * 32 >= 32 ? kAllLanes : (1u << head.rows % 32) - 1;
  }
  __device__ uint32_t forced_of(uint32_t word) const {
    uint32_t mask = 0;
    for (uint32_t i = 0; i < head.forced_count; ++i) {
      const RowRange range = forced[i];
      const uint32_t begin = max(range.begin, word * 32), end = min(range.end, word * 32 + 32);
      if (begin < end) mask |= kAllLanes >> (32 - (end - begin)) << begin % 32;
    }
    return mask & valid(word);
  }
  __device__ bool is_forced(uint32_t row) const {
    bool out = false;
    for (uint32_t i = 0; i < head.forced_count; ++i) out |= row >= forced[i].begin && row < forced[i].end;
    return out;
  }
  __device__ bool has_forced(uint32_t begin, uint32_t end) const {
    bool out = false;
    for (uint32_t k = 0; k < head.forced_count; ++k) out |= forced[k].begin < end && forced[k].end > begin;
    return out;
  }
  __device__ uint32_t forced_rows() const {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < head.forced_count; ++i)
      sum += min(forced[i].end, head.rows) - min(forced[i].begin, head.rows);
    return sum;
  }
  __device__ void keep(uint32_t row) const { atomicOr(&retained[row / 32], 1u << row % 32); }

  __device__ void begin() const {
    clear(s.one, kThreads);
    for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) s.counts[i] = 0;
    if (threadIdx.x == 0) {
      s.above = s.listed = s.few = s.unordered = s.one.prefix[0] = 0;
      s.sample.least = kAllLanes, s.sample.largest = s.sample.size = 0;
    }
    __syncthreads();
  }

  // Retains the first `wanted` of [0, count) in the total order. take(i, &key): whether i is a candidate, and
  // its key of `bits` bits; row_at(i): its row.
  template <typename Take, typename RowAt>
  __device__ void keep_best(uint32_t count, uint32_t wanted, int bits, const Take& take,
                            const RowAt& row_at) const {
    if (threadIdx.x == 0) s.one.left[0] = wanted;
    const int rest = find_ranks<kThreads>(s.one, count, bits, kFew, take);
    const uint32_t last = s.one.prefix[0], left = s.one.left[0];
    const bool ties =
        s.one.equal[0] > kFew;  // too many equal keys to compare all pairs: the last rows are retained
    uint32_t from = 0;
    int row_rest = 0;
    if (ties) {
      __syncthreads();
      if (threadIdx.x == 0) s.one.prefix[0] = 0;
      row_rest = find_ranks<kThreads>(s.one, count, 20, 1, [&](uint32_t i, uint32_t* row) {
        uint32_t key;
        *row = row_at(i);
        return take(i, &key) && key == last;
      });
      from = s.one.prefix[0];
    }
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
      uint32_t key;
      if (!take(i, &key) || key >> rest < last) continue;
      if (key >> rest > last || (ties && row_at(i) >> row_rest >= from)) {
        keep(row_at(i));
      } else if (!ties) {
        s.few_keys[atomicAdd(&s.few, 1)] = uint64_t{key} << 32 | row_at(i);
      }
    }
    __syncthreads();
    if (threadIdx.x < kFew) keep_few(left);
    __syncthreads();
  }
  // Called by one warp.
  __device__ void keep_few(uint32_t left) const {
    const uint32_t lane = threadIdx.x, few = s.few;
    const uint64_t mine = lane < few ? s.few_keys[lane] : 0;
    uint32_t better = 0;
    for (uint32_t i = 0; i < few; ++i) better += __shfl_sync(kAllLanes, mine, static_cast<int>(i)) > mine;
    if (lane < few && better < left) keep(static_cast<uint32_t>(mine));
  }

  // The exhaustive path, for scores that a sample does not bracket: every round reads all rows from L2.
  __device__ void keep_unlisted(uint32_t wanted) const {
    for (uint32_t w = threadIdx.x; w < words; w += kThreads) retained[w] = forced_of(w);
    __syncthreads();
    keep_best(
        head.rows, wanted, 32,
        [&](uint32_t row, uint32_t* key) {
          *key = key_of(scores[row]) - kLeastKey;
          return !is_forced(row);
        },
        [](uint32_t row) { return row; });
  }
  __device__ void count_nan(uint32_t* nan) const {
    if (nan == nullptr) return;
    uint32_t sum = 0;
    for (uint32_t row = threadIdx.x; row < head.rows; row += kThreads)
      sum += isnan(scores[row]) && !is_forced(row);
    if (sum > 0) atomicAdd(nan, sum);
  }

  // Converts bits to rows, in ascending order. `retained` is padded to a multiple of four words.
  __device__ void write(uint32_t* out) const {
    const uint32_t each = (words + kThreads - 1) / kThreads;
    const uint32_t first = min(threadIdx.x * each, words), end = min(first + each, words);
    uint32_t own = 0, all;
    for (uint32_t w = first; w < end; ++w) own += __popc(retained[w]);
    uint32_t before = sum_before<kWarps>(own, s.sums, &all);
    auto* const places = reinterpret_cast<uint32_t*>(ring);  // the tiles are no longer read
    for (uint32_t w = first; w < end; ++w) {
      places[w] = before;
      before += __popc(retained[w]);
    }
    __syncthreads();
    asm volatile("" : "+l"(out));  // keeps `out` in a register: each address is then one multiply-add
    const uint32_t lane = threadIdx.x % 32, mine = 1u << lane, below = mine - 1;
    for (uint32_t w = threadIdx.x / 32 * 4; w < words; w += kWarps * 4) {
      const uint4 bits = *reinterpret_cast<const uint4*>(retained + w);
      const uint4 at = *reinterpret_cast<const uint4*>(places + w);
      const uint32_t row = w * 32 + lane;
      const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w}, first_of[4] = {at.x, at.y, at.z, at.w};
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i)
        store_if(word[i] & mine, out + (first_of[i] + __popc(word[i] & below)), row + 32 * i);
    }
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SELECT_SELECT_CHOICE_CUH_
