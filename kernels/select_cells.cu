#include <algorithm>

#include "kernels/block_sum.cuh"
#include "kernels/select_cells.h"
#include "kernels/select_ranks.cuh"

namespace kvtwin {
namespace {

using namespace device;

// Of so many candidates all are listed; of more, those in the bracket.
constexpr uint32_t kListedAtOnce = 2048;
constexpr uint32_t kUnroll = 16;        // words of rows that a warp has on their way
constexpr uint32_t kRowsMax = 1 << 19;  // two bits of shared memory a row

// Shared memory beyond Shared: kept[words], listed[words], then rows and keys of the list.
struct Room {
  uint32_t words = 0, list = 0, sample = 0;

  size_t bytes() const { return 2 * sizeof(uint32_t) * (size_t{words} + list); }
};

template <uint32_t kThreads>
struct Shared {
  RankSearch<2> two;
  RankSearch<1> one;
  uint64_t sums[kThreads / 32];
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
  __device__ int top() const {
    const uint32_t largest = key_of(high == 0 ? 0.0f : high) - base() + 1;
    return (31 - __clz(static_cast<int>(largest))) / 8 * 8;
  }
};

// The choice of one head, by a CTA.
template <uint32_t kThreads>
struct Choice {
  static constexpr uint32_t kWarps = kThreads / 32;

  const SelectHead head;
  const RowRange* const forced;
  const float* const scores;
  Shared<kThreads>& s;
  uint32_t* const kept;    // a bit a row
  uint32_t* const listed;  // likewise; then where a word's kept rows go
  uint32_t* const list;    // rows
  uint32_t* const keys;    // theirs
  const Room room;
  const uint32_t words;

  __device__ Choice(const SelectArgs& args, const Room& space, Shared<kThreads>& shared, uint32_t* memory)
      : head(args.heads[blockIdx.x]),
        forced(args.forced + head.forced_first),
        scores(args.scores + blockIdx.x * args.stride),
        s(shared),
        kept(memory),
        listed(memory + space.words),
        list(listed + space.words),
        keys(list + space.list),
        room(space),
        words((head.rows + 31) / 32) {}

  __device__ uint32_t valid(uint32_t word) const {
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
  __device__ bool is_forced(uint32_t row) const { return (forced_of(row / 32) >> row % 32 & 1) != 0; }
  __device__ uint32_t forced_rows() const {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < head.forced_count; ++i)
      sum += min(forced[i].end, head.rows) - min(forced[i].begin, head.rows);
    return sum;
  }

  // So that the rows are in L2 when the bracket is known.
  __device__ void prefetch() const {
    constexpr uint32_t kPiece = 4096;
    const uint64_t begin = (reinterpret_cast<uint64_t>(scores) + 15) / 16 * 16;
    const uint64_t end = reinterpret_cast<uint64_t>(scores + head.rows) / 16 * 16;
    for (uint64_t at = begin + threadIdx.x * kPiece; at < end; at += kThreads * kPiece) {
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at),
                   "r"(static_cast<uint32_t>(min(end - at, uint64_t{kPiece})))
                   : "memory");
    }
  }

  // Between which scores the one of rank `keep` is, by the ranks of a sample: one row of each of so many
  // equal stretches. Four and a half times the sample's deviation off: beyond that once in 100,000 heads.
  __device__ Bracket bracket(uint32_t keep, uint32_t candidates) const {
    uint32_t own = 0;
    for (uint32_t i = threadIdx.x; i < room.sample; i += kThreads) {
      const uint64_t at = uint64_t{i} << 32 | i * 0x9e3779b9u;
      const auto row = static_cast<uint32_t>((at * head.rows >> 32) / room.sample);
      const bool takes = !is_forced(row);
      keys[i] = takes ? key_of(scores[row]) : 0;
      own += takes;
    }
    uint64_t all;
    sum_before<kWarps>(uint64_t{own}, s.sums, &all);
    Bracket out;
    if (all == 0) return out;
    const auto size = static_cast<float>(all);
    const float middle = size * static_cast<float>(keep) / static_cast<float>(candidates);
    const float reach = 4.5f * sqrtf(fmaxf(middle * (1 - middle / size), 0)) + 2;
    const float above = middle - reach, below = middle + reach + 1;
    __syncthreads();
    if (threadIdx.x == 0) {
      s.two.left[0] = static_cast<uint32_t>(fmaxf(above, 1));
      s.two.left[1] = static_cast<uint32_t>(fminf(below, size));
    }
    find_ranks<kThreads>(s.two, room.sample, 24, [&](uint32_t i, uint32_t* key) {
      *key = keys[i];
      return keys[i] != 0;
    });
    if (above >= 1) out.high = score_of(s.two.key[0]);
    if (below <= size) out.low = score_of(s.two.key[1]);
    return out;
  }

  // The one read of all scores.
  __device__ void compare(const Bracket& bracket) const {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t first = warp * kUnroll; first < words; first += kWarps * kUnroll) {
      float x[kUnroll];
#pragma unroll
      for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t row = (first + i) * 32 + lane;
        x[i] = row < head.rows ? scores[row] : 0;
      }
#pragma unroll
      for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t above = __ballot_sync(kAllLanes, x[i] > bracket.high);
        const uint32_t within = __ballot_sync(kAllLanes, !(x[i] > bracket.high) && !(x[i] < bracket.low));
        if (lane == 0 && first + i < words) kept[first + i] = above, listed[first + i] = within;
      }
    }
    __syncthreads();
  }

  struct Sizes {
    uint32_t above = 0, listed = 0;
  };
  // Forced rows become kept ones and are not listed; the list of rows, if there is room for it.
  __device__ Sizes make_list() const {
    const uint32_t each = (words + kThreads - 1) / kThreads;
    const uint32_t first = min(threadIdx.x * each, words), end = min(first + each, words);
    uint32_t above = 0, within = 0;
    for (uint32_t w = first; w < end; ++w) {
      const uint32_t must = forced_of(w), rest = valid(w) & ~must;
      const uint32_t a = kept[w] & rest, b = listed[w] & rest;
      above += __popc(a), within += __popc(b);
      kept[w] = a | must, listed[w] = b;
    }
    uint64_t all;
    const uint64_t before = sum_before<kWarps>(uint64_t{above} << 32 | within, s.sums, &all);
    const Sizes sizes{static_cast<uint32_t>(all >> 32), static_cast<uint32_t>(all)};
    if (sizes.listed <= room.list) {
      auto at = static_cast<uint32_t>(before);
      for (uint32_t w = first; w < end; ++w) {
        for (uint32_t left = listed[w]; left != 0; left &= left - 1)
          list[at++] = w * 32 + static_cast<uint32_t>(__ffs(static_cast<int>(left))) - 1;
      }
    }
    __syncthreads();
    return sizes;
  }

  // Of [0, count), those that stay: the first `wanted` in the total order, where key_at and row_at say what i
  // is. Calls stay(i's row).
  template <typename Take, typename RowAt, typename Stay>
  __device__ void take_best(uint32_t count, uint32_t wanted, int top, const Take& take, const RowAt& row_at,
                            const Stay& stay) const {
    __syncthreads();
    if (threadIdx.x == 0) s.one.left[0] = wanted;
    find_ranks<kThreads>(s.one, count, top, take);
    const uint32_t last = s.one.key[0], ties = s.one.left[0], equal = s.one.equal[0];
    uint32_t from = 0;
    if (ties < equal) {  // of equal keys the last rows
      __syncthreads();
      find_ranks<kThreads>(s.one, count, 24, [&](uint32_t i, uint32_t* row) {
        uint32_t key;
        *row = row_at(i);
        return take(i, &key) && key == last;
      });
      from = s.one.key[0];
    }
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
      uint32_t key;
      if (take(i, &key) && (key > last || (key == last && row_at(i) >= from))) stay(row_at(i));
    }
    __syncthreads();
  }

  __device__ void keep_listed(const Bracket& bracket, uint32_t count, uint32_t wanted, uint32_t* nan) const {
    uint32_t no_numbers = 0;
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
      const float score = scores[list[i]];
      no_numbers += isnan(score);
      keys[i] = bracket.near_key(score);
    }
    if (no_numbers > 0 && nan != nullptr) atomicAdd(nan, no_numbers);
    if (wanted == 0) return __syncthreads();
    take_best(
        count, wanted, bracket.top(),
        [&](uint32_t i, uint32_t* key) {
          *key = keys[i];
          return true;
        },
        [&](uint32_t i) { return list[i]; },
        [&](uint32_t row) { atomicOr(&kept[row / 32], 1u << row % 32); });
  }

  // Without a list, for scores that no sample tells much of: rows are read from L2 in every round.
  __device__ void keep_unlisted(uint32_t wanted) const {
    for (uint32_t w = threadIdx.x; w < words; w += kThreads) kept[w] = forced_of(w);
    take_best(
        head.rows, wanted, 24,
        [&](uint32_t row, uint32_t* key) {
          *key = key_of(scores[row]);
          return !is_forced(row);
        },
        [](uint32_t row) { return row; }, [&](uint32_t row) { atomicOr(&kept[row / 32], 1u << row % 32); });
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
    uint32_t own = 0;
    for (uint32_t w = first; w < end; ++w) own += __popc(kept[w]);
    uint64_t all;
    auto before = static_cast<uint32_t>(sum_before<kWarps>(uint64_t{own}, s.sums, &all));
    for (uint32_t w = first; w < end; ++w) {
      listed[w] = before;
      before += __popc(kept[w]);
    }
    __syncthreads();
    const uint32_t lane = threadIdx.x % 32, below = (1u << lane) - 1;
#pragma unroll 4
    for (uint32_t w = threadIdx.x / 32; w < words; w += kWarps) {
      const uint32_t bits = kept[w];
      if ((bits >> lane & 1) != 0) out[listed[w] + __popc(bits & below)] = w * 32 + lane;
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
  Bracket bracket;
  if (candidates <= kListedAtOnce) {
    for (uint32_t w = threadIdx.x; w < choice.words; w += kThreads)
      choice.kept[w] = 0, choice.listed[w] = kAllLanes;
    __syncthreads();
  } else {
    choice.prefetch();
    bracket = choice.bracket(head.keep, candidates);
    choice.compare(bracket);
  }
  const auto sizes = choice.make_list();
  if (sizes.listed <= room.list && sizes.above <= head.keep && head.keep - sizes.above <= sizes.listed) {
    choice.keep_listed(bracket, sizes.listed, head.keep - sizes.above, args.nan);
  } else {
    choice.count_nan(args.nan);
    choice.keep_unlisted(head.keep);
  }
  choice.write(args.kept + head.kept);
}

// A list has room for 1.15 times what a bracket around the middle rank holds.
Room room_for(uint32_t rows_max) {
  Room out;
  out.words = (rows_max + 31) / 32;
  out.sample = rows_max <= 16384 ? 512 : rows_max <= 131072 ? 1024 : 4096;
  const uint32_t part = rows_max <= 16384 ? 4 : rows_max <= 131072 ? 6 : 12;  // 1 / 0.23, 0.16, 0.08
  const uint32_t most = static_cast<uint32_t>((200u << 10) - 8 * size_t{out.words}) / 8;
  out.list = std::min(std::max({rows_max / part, out.sample, std::min(rows_max, kListedAtOnce)}), most);
  return out;
}

template <uint32_t kThreads, uint32_t kCtas>
cudaError_t launch(const SelectArgs& args, cudaStream_t stream) {
  const Room room = room_for(args.rows_max);
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
  if (args.rows_max <= 12288 && args.count > kSms) return launch<256, 6>(args, stream);
  if (args.count > kSms) return launch<512, 2>(args, stream);
  return launch<1024, 1>(args, stream);
}

}  // namespace kvtwin
