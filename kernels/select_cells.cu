#include <algorithm>

#include "kernels/block_sum.cuh"
#include "kernels/select_cells.h"
#include "kernels/select_ranks.cuh"

namespace kvtwin {
namespace {

using namespace device;

// Of so many candidates all are listed; of more, those in the bracket.
constexpr uint32_t kListedAtOnce = 2048;
constexpr uint32_t kUnroll = 16, kHalf = kUnroll / 2;  // words of rows that a warp has on their way
constexpr uint32_t kSampleEach = 4;                    // rows of the sample, by thread
constexpr uint32_t kFew = 32;                          // rows whose order is found by comparing all with all
constexpr uint32_t kRowsMax = 1 << 19;                 // a bit of shared memory a row

// Shared memory beyond Shared: kept[words], then rows and keys of the list.
struct Room {
  uint32_t words = 0, list = 0;

  size_t bytes() const { return sizeof(uint32_t) * (size_t{words} + 2 * list); }
};

template <uint32_t kThreads>
struct Shared {
  RankSearch<2> two;
  RankSearch<1> one;
  uint64_t few_keys[kFew];  // key, row
  uint32_t sums[kThreads / 32];
  uint32_t least, largest, sampled;
  uint32_t above, listed, few;
};

// Scores above `high` stay; what is neither above it nor below `low` is listed (NaN is: its rank is -inf's).
struct Bracket {
  float low = -INFINITY, high = INFINITY;

  // Keys of listed rows as numbers from 0: smaller ones take fewer rounds. What is below (NaN) is 0.
  __device__ uint32_t base() const { return key_of(low == 0 ? -0.0f : low); }
  __device__ uint32_t near_key(float score) const {
    const uint32_t key = key_of(score);
    return key < base() ? 0 : key - base() + 1;
  }
  __device__ int bits() const {
    return 32 - __clz(static_cast<int>(key_of(high == 0 ? 0.0f : high) - base() + 1));
  }
};

// The choice of one head, by a CTA.
template <uint32_t kThreads>
struct Choice {
  static constexpr uint32_t kWarps = kThreads / 32, kSample = kThreads * kSampleEach;

  const SelectHead head;
  const RowRange* const forced;
  const float* const scores;
  Shared<kThreads>& s;
  const Room room;
  const uint32_t words;
  uint32_t* const kept;  // a bit a row
  uint32_t* const list;  // rows; later, where a word's kept rows go
  uint32_t* const keys;  // theirs

  __device__ Choice(const SelectArgs& args, const Room& space, Shared<kThreads>& shared, uint32_t* memory)
      : head(args.heads[blockIdx.x]),
        forced(args.forced + head.forced_first),
        scores(args.scores + blockIdx.x * args.stride),
        s(shared),
        room(space),
        words((head.rows + 31) / 32),
        kept(memory),
        list(memory + space.words),
        keys(list + space.list) {}

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
    for (uint32_t i = 0; i < head.forced_count; ++i) out |= forced[i].begin < end && forced[i].end > begin;
    return out;
  }
  __device__ uint32_t forced_rows() const {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < head.forced_count; ++i)
      sum += min(forced[i].end, head.rows) - min(forced[i].begin, head.rows);
    return sum;
  }
  __device__ void keep(uint32_t row) const { atomicOr(&kept[row / 32], 1u << row % 32); }

  __device__ void begin() const {
    clear(s.two, kThreads), clear(s.one, kThreads);
    if (threadIdx.x == 0) {
      s.least = kAllLanes, s.largest = s.sampled = s.above = s.listed = s.few = 0;
      s.two.prefix[0] = s.two.prefix[1] = s.one.prefix[0] = 0;
    }
    __syncthreads();
  }

  __device__ void load(uint32_t first, float (&x)[kUnroll]) const {
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
      const uint32_t row = (first + i) * 32 + threadIdx.x % 32;
      x[i] = row < head.rows ? scores[row] : 0;
    }
  }

  // Between which scores the one of rank `keep` is, by the ranks of a sample: one row of each of so many
  // equal stretches. Four and a half times the sample's deviation off: beyond that once in 100,000 heads.
  __device__ Bracket bracket(uint32_t wanted, uint32_t candidates) const {
    float x[kSampleEach];
    uint32_t row[kSampleEach];
#pragma unroll
    for (uint32_t k = 0; k < kSampleEach; ++k) {
      const uint32_t i = k * kThreads + threadIdx.x;
      row[k] = static_cast<uint32_t>(((uint64_t{i} << 32 | i * 0x9e3779b9u) * head.rows >> 32) / kSample);
      x[k] = scores[row[k]];
    }
    uint32_t least = kAllLanes, largest = 0, taken = 0;
#pragma unroll
    for (uint32_t k = 0; k < kSampleEach; ++k) {
      const uint32_t key = is_forced(row[k]) ? 0 : key_of(x[k]);
      keys[k * kThreads + threadIdx.x] = key;
      if (key == 0) continue;
      least = min(least, key), largest = max(largest, key), ++taken;
    }
    least = __reduce_min_sync(kAllLanes, least), largest = __reduce_max_sync(kAllLanes, largest);
    taken = __reduce_add_sync(kAllLanes, taken);
    if (threadIdx.x % 32 == 0)
      atomicMin(&s.least, least), atomicMax(&s.largest, largest), atomicAdd(&s.sampled, taken);
    __syncthreads();
    least = s.least, largest = s.largest;
    Bracket out;
    if (s.sampled == 0) return out;
    const auto size = static_cast<float>(s.sampled);
    const float middle = size * static_cast<float>(wanted) / static_cast<float>(candidates);
    const float reach = 4.5f * sqrtf(fmaxf(middle * (1 - middle / size), 0)) + 2;
    const float above = middle - reach, below = middle + reach + 1;
    if (threadIdx.x == 0) {
      s.two.left[0] = static_cast<uint32_t>(fmaxf(above, 1));
      s.two.left[1] = static_cast<uint32_t>(fminf(below, size));
    }
    const int bits = 32 - __clz(static_cast<int>((largest - least) | 1));
    const int rest = find_ranks<kThreads>(s.two, kSample, bits, kSample / 64, [&](uint32_t i, uint32_t* key) {
      *key = keys[i] - least;
      return keys[i] != 0;
    });
    // From the lowest key that begins as the lower rank's to the highest one that begins as the upper one's.
    const uint32_t high = least + (s.two.prefix[0] << rest) + ((1u << rest) - 1);
    if (above >= 1) out.high = score_of(high < least ? kLargestKey : min(high, kLargestKey));
    if (below <= size) out.low = score_of(least + (s.two.prefix[1] << rest));
    return out;
  }

  // The one read of all scores (x: the first ones, which are there): bits of what stays, the list of what
  // may.
  __device__ void compare(const Bracket& bracket, float (&x)[kUnroll]) const {
    uint32_t above = 0;
    for (uint32_t first = threadIdx.x / 32 * kUnroll; first < words; first += kWarps * kUnroll) {
      if (first >= kWarps * kUnroll) load(first, x);
      above += compare_half(bracket, first, x, 0);
      above += compare_half(bracket, first + kHalf, x, kHalf);
    }
    if (threadIdx.x % 32 == 0) atomicAdd(&s.above, above);
    __syncthreads();
  }
  __device__ __forceinline__ uint32_t compare_half(const Bracket& bracket, uint32_t first,
                                                   const float (&x)[kUnroll], uint32_t from) const {
    const uint32_t lane = threadIdx.x % 32;
    const bool plain = (first + kHalf) * 32 <= head.rows && !has_forced(first * 32, (first + kHalf) * 32);
    uint32_t within[kHalf], above = 0, count = 0;
#pragma unroll
    for (uint32_t i = 0; i < kHalf; ++i) {
      const float score = x[from + i];
      uint32_t stays = __ballot_sync(kAllLanes, score > bracket.high);
      within[i] = __ballot_sync(kAllLanes, !(score > bracket.high) && !(score < bracket.low));
      uint32_t must = 0;
      if (!plain) {
        must = forced_of(first + i);
        const uint32_t candidates = valid(first + i) & ~must;
        stays &= candidates, within[i] &= candidates;
      }
      above += __popc(stays), count += __popc(within[i]);
      if (lane == 0 && first + i < words) kept[first + i] = stays | must;
    }
    uint32_t at = 0;
    if (lane == 0 && count > 0) at = atomicAdd(&s.listed, count);
    at = __shfl_sync(kAllLanes, at, 0);
    if (at + count > room.list) return above;  // told by s.listed
#pragma unroll
    for (uint32_t i = 0; i < kHalf; ++i) {
      if ((within[i] >> lane & 1) != 0) {
        const uint32_t place = at + __popc(within[i] & ((1u << lane) - 1));
        list[place] = (first + i) * 32 + lane, keys[place] = __float_as_uint(x[from + i]);
      }
      at += __popc(within[i]);
    }
    return above;
  }

  // Of [0, count), the first `wanted` in the total order stay; take(i, &key): whether it counts, with which
  // key of `bits`; row_at(i).
  template <typename Take, typename RowAt>
  __device__ void keep_best(uint32_t count, uint32_t wanted, int bits, const Take& take,
                            const RowAt& row_at) const {
    if (threadIdx.x == 0) s.one.left[0] = wanted;
    const int rest = find_ranks<kThreads>(s.one, count, bits, kFew, take);
    const uint32_t last = s.one.prefix[0], left = s.one.left[0];
    const bool ties = s.one.equal[0] > kFew;  // equal keys, too many to compare all: the last rows stay
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
  // One warp.
  __device__ void keep_few(uint32_t left) const {
    const uint32_t lane = threadIdx.x, few = s.few;
    const uint64_t mine = lane < few ? s.few_keys[lane] : 0;
    uint32_t better = 0;
    for (uint32_t i = 0; i < few; ++i) better += __shfl_sync(kAllLanes, mine, static_cast<int>(i)) > mine;
    if (lane < few && better < left) keep(static_cast<uint32_t>(mine));
  }

  __device__ void keep_listed(const Bracket& bracket, uint32_t count, uint32_t wanted, uint32_t* nan) const {
    uint32_t no_numbers = 0;
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
      const float score = __uint_as_float(keys[i]);
      no_numbers += isnan(score);
      keys[i] = bracket.near_key(score);
    }
    if (no_numbers > 0 && nan != nullptr) atomicAdd(nan, no_numbers);
    if (wanted == 0) return;
    keep_best(
        count, wanted, bracket.bits(),
        [&](uint32_t i, uint32_t* key) {
          *key = keys[i];
          return true;
        },
        [&](uint32_t i) { return list[i]; });
  }

  // Without a list, for scores that no sample tells much of: rows are read from L2 in every round.
  __device__ void keep_unlisted(uint32_t wanted) const {
    for (uint32_t w = threadIdx.x; w < words; w += kThreads) kept[w] = forced_of(w);
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

  // Bits become rows, in ascending order.
  __device__ void write(uint32_t* out) const {
    const uint32_t each = (words + kThreads - 1) / kThreads;
    const uint32_t first = min(threadIdx.x * each, words), end = min(first + each, words);
    uint32_t own = 0, all;
    for (uint32_t w = first; w < end; ++w) own += __popc(kept[w]);
    uint32_t before = sum_before<kWarps>(own, s.sums, &all);
    for (uint32_t w = first; w < end; ++w) {
      list[w] = before;
      before += __popc(kept[w]);
    }
    __syncthreads();
    const uint32_t lane = threadIdx.x % 32, below = (1u << lane) - 1;
#pragma unroll 4
    for (uint32_t w = threadIdx.x / 32; w < words; w += kWarps) {
      const uint32_t bits = kept[w];
      if ((bits >> lane & 1) != 0) out[list[w] + __popc(bits & below)] = w * 32 + lane;
    }
  }
};

template <uint32_t kThreads, uint32_t kCtas>
__global__ void __launch_bounds__(kThreads, kCtas)
    select_kernel(const __grid_constant__ SelectArgs args, const __grid_constant__ Room room) {
  extern __shared__ uint32_t memory[];
  __shared__ Shared<kThreads> s;
  const Choice<kThreads> choice(args, room, s, memory);
  const SelectHead& head = choice.head;
  if (head.rows == 0) return;
  const uint32_t candidates = head.rows - choice.forced_rows();
  if (head.keep == 0 || head.keep >= candidates) {
    for (uint32_t w = threadIdx.x; w < choice.words; w += kThreads)
      choice.kept[w] = head.keep == 0 ? choice.forced_of(w) : choice.valid(w);
    choice.count_nan(args.nan);
    __syncthreads();
    return choice.write(args.kept + head.kept);
  }
  float x[kUnroll];
  choice.load(threadIdx.x / 32 * kUnroll, x);
  choice.begin();
  Bracket bracket;
  if (candidates > kListedAtOnce) bracket = choice.bracket(head.keep, candidates);
  choice.compare(bracket, x);
  const uint32_t above = s.above, listed = s.listed;
  if (listed <= room.list && above <= head.keep && head.keep - above <= listed) {
    choice.keep_listed(bracket, listed, head.keep - above, args.nan);
  } else {
    choice.count_nan(args.nan);
    choice.keep_unlisted(head.keep);
  }
  choice.write(args.kept + head.kept);
}

// A list has room for what a bracket around the middle rank holds, and the two digits at its ends; and for
// the words of all rows.
Room room_for(uint32_t rows_max, uint32_t sample) {
  Room out;
  out.words = (rows_max + 31) / 32;
  const double part = 4.5 / std::sqrt(sample) + 1.0 / 16;
  const auto bracket = static_cast<uint32_t>(1.1 * part * rows_max);
  const auto most = static_cast<uint32_t>(((200u << 10) - 4 * size_t{out.words}) / 8);
  out.list = std::min(std::max({bracket, sample, std::min(rows_max, kListedAtOnce)}), most);
  return out;
}

template <uint32_t kThreads, uint32_t kCtas>
cudaError_t launch(const SelectArgs& args, cudaStream_t stream) {
  const Room room = room_for(args.rows_max, kThreads * kSampleEach);
  const cudaError_t error = cudaFuncSetAttribute(select_kernel<kThreads, kCtas>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10);
  if (error != cudaSuccess) return error;
  select_kernel<kThreads, kCtas><<<args.count, kThreads, room.bytes(), stream>>>(args, room);
  return cudaGetLastError();
}

}  // namespace

cudaError_t select_cells(const SelectArgs& args, cudaStream_t stream) {
  if (args.rows_max > kRowsMax) return cudaErrorInvalidValue;
  if (args.count == 0 || args.rows_max == 0) return cudaSuccess;
  // Short heads: many CTAs an SM, so that some read while others search. Few heads: all of an SM for one.
  constexpr uint32_t kSms = 132;
  if (args.rows_max <= 12288 && args.count > kSms) return launch<256, 5>(args, stream);
  if (args.count > kSms) return launch<512, 2>(args, stream);
  return launch<1024, 1>(args, stream);
}

}  // namespace kvtwin
