#include <algorithm>

#include "kernels/select/select_choice.cuh"
#include "kernels/select/select_entries.h"

namespace kvtwin {
namespace {

using namespace device;

// Up to this many candidates are all listed; of more, those in the bracket.
constexpr uint32_t kListedAtOnce = 1024;
constexpr uint32_t kRowsMax = 1 << 19;  // one bit of shared memory per row
constexpr uint32_t kSampleEach = kTileSample / 32;

// The fast path: a sample, one pass over the scores, a list of the rows in question.
template <uint32_t kThreads>
struct QuickChoice : HeadChoice<kThreads> {
  using Base = HeadChoice<kThreads>;
  using Base::forced, Base::head, Base::retained, Base::list, Base::listed_scores, Base::ring, Base::room,
      Base::s, Base::scores, Base::words;
  static constexpr uint32_t kWarps = Base::kWarps;

  using Base::Base;

  // Samples the warp's own tiles if they are resident: one of every eight rows, at an offset that varies.
  // Otherwise samples equally spaced ranges of all rows.
  __device__ Sample sample(const Tiles<kWarps>& tiles) const {
    uint32_t* const own = list + threadIdx.x;
    uint32_t mine = 0;
    const auto put = [&](uint32_t row, float score, bool some_forced) {
      own[mine++ * kThreads] = some_forced && this->is_forced(row) ? 0 : key_of(score);
    };
    if (room.resident) {
      for (uint32_t i = 0; i < tiles.count(); ++i) {
        const float* const tile = tiles.wait(i);
        const uint32_t first = tiles.number(i) * kTileRows;
        const bool some_forced = this->has_forced(first, first + kTileRows);
#pragma unroll
        for (uint32_t k = 0; k < kSampleEach; ++k) {
          const uint32_t n = k * 32 + threadIdx.x % 32, row = n * 8 + (n * 0x9e3779b9u >> 29);
          if (row < tiles.rows(i)) put(first + row, tile[row], some_forced);
        }
      }
      return {own, mine};
    }
    const uint32_t size = room.rounds * kSampleEach * kThreads;
    for (uint32_t round = 0; round < room.rounds; ++round) {
      uint32_t rows[kSampleEach];
      float x[kSampleEach];
#pragma unroll
      for (uint32_t k = 0; k < kSampleEach; ++k) {
        const uint32_t i = (round * kSampleEach + k) * kThreads + threadIdx.x;
        rows[k] = static_cast<uint32_t>(((uint64_t{i} << 32 | i * 0x9e3779b9u) * head.rows >> 32) / size);
        x[k] = scores[rows[k]];
      }
#pragma unroll
      for (uint32_t k = 0; k < kSampleEach; ++k) put(rows[k], x[k], true);
    }
    return {own, mine};
  }

  // The one pass over all scores: sets bits of retained rows, lists the rows in the bracket, and builds a
  // histogram of their keys.
  __device__ void compare(const Bracket& bracket, Tiles<kWarps>& tiles) const {
    const uint32_t lane = threadIdx.x % 32;
    const NearKeys near(bracket);
    uint32_t above = 0, unordered = 0;
    for (uint32_t i = 0; i < tiles.count(); ++i) {
      const float* const tile = tiles.wait(i);
      const RowComparison bits(tile, bracket);
      const uint32_t word = tiles.number(i) * (kTileRows / 32) + lane;
      const uint32_t must = this->forced_of(word), candidates = this->valid(word) & ~must;
      retained[word] = (bits.above & candidates) | must;
      above += __popc(bits.above & candidates);
      unordered += list_rows(bits.within & candidates, word, tile + lane * 32, near);
      if (!room.resident) tiles.release(i);
    }
    above = __reduce_add_sync(kAllLanes, above);
    if (lane == 0) atomicAdd(&s.above, above);
    if (unordered > 0) atomicAdd(&s.unordered, unordered);
    __syncthreads();
  }
  // Returns how many of them are NaN, which ranks behind all others.
  __device__ __forceinline__ uint32_t list_rows(uint32_t within, uint32_t word, const float* mine,
                                                const NearKeys& near) const {
    const uint32_t lane = threadIdx.x % 32, count = __popc(within);
    uint32_t until = count;
#pragma unroll
    for (uint32_t by = 1; by < 32; by *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, until, by);
      if (lane >= by) until += other;
    }
    uint32_t at = 0;
    if (lane == 31 && until > 0) at = atomicAdd(&s.listed, until);
    at = __shfl_sync(kAllLanes, at, 31) + until - count;
    if (at + count > room.list) return 0;  // told by s.listed
    const int shift = bin_shift(near.bits());
    uint32_t unordered = 0;
    // Shared addresses, kept in registers.
    const uint32_t from = shared_address(mine), counts = shared_address(s.counts);
    const uint32_t to_scores = room.resident ? 0 : room.list * sizeof(float);
    uint32_t to = shared_address(list + at);
    for (; within != 0; within &= within - 1, to += sizeof(uint32_t)) {
      const uint32_t bit = __ffs(static_cast<int>(within)) - 1;
      const uint32_t score = load_word(from + bit * sizeof(float));
      const uint32_t key = near(__uint_as_float(score));
      unordered += key == 0;
      count_up(counts + (key >> shift) * sizeof(uint32_t));
      store_word(to, word * 32 + bit);
      if (to_scores > 0) store_word(to + to_scores, score);
    }
    return unordered;
  }
  __device__ float listed(uint32_t i) const { return room.resident ? ring[list[i]] : listed_scores[i]; }

  // Retains the best `wanted` of the list: all bins above the one with that rank, and from this bin the first
  // in the total order.
  __device__ void keep_listed(const Bracket& bracket, uint32_t count, uint32_t wanted, uint32_t* nan) const {
    if (nan != nullptr) {
      uint32_t no_numbers = 0;
      for (uint32_t i = threadIdx.x; i < count; i += kThreads) no_numbers += isnan(listed(i));
      if (no_numbers > 0) atomicAdd(nan, no_numbers);
    }
    if (wanted == 0) return;
    const uint32_t ranks[1] = {wanted};
    find_bins<kThreads>(s.counts, ranks, s.sums, s.bin);
    const NearKeys near(bracket);
    if (s.bin.count[0] > kFew) {
      return this->keep_best(
          count, wanted, near.bits(),
          [&](uint32_t i, uint32_t* key) {
            *key = near(listed(i));
            return true;
          },
          [&](uint32_t i) { return list[i]; });
    }
    const int shift = bin_shift(near.bits());
    const uint32_t bin = s.bin.bin[0];
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
      const uint32_t key = near(listed(i));
      if (key >> shift < bin) continue;
      if (key >> shift > bin) {
        this->keep(list[i]);
      } else {
        s.few_keys[atomicAdd(&s.few, 1)] = uint64_t{key} << 32 | list[i];
      }
    }
    __syncthreads();
    if (threadIdx.x < kFew) this->keep_few(s.bin.left[0]);
    __syncthreads();
  }
};

template <uint32_t kThreads, uint32_t kCtas>
__global__ void __launch_bounds__(kThreads, kCtas)
    select_kernel(const __grid_constant__ SelectArgs args, const __grid_constant__ SelectRoom room) {
  extern __shared__ __align__(128) char memory[];
  __shared__ SelectShared<kThreads> s;
  const QuickChoice<kThreads> choice(args, room, s, memory);
  const SelectHead& head = choice.head;
  if (head.rows == 0) return;
  const uint32_t candidates = head.rows - choice.forced_rows();
  if (head.keep == 0 || head.keep >= candidates) {
    for (uint32_t w = threadIdx.x; w < (choice.words + 3) / 4 * 4; w += kThreads)
      choice.retained[w] = head.keep == 0 ? choice.forced_of(w) : choice.valid(w);
    choice.count_nan(args.nan);
    __syncthreads();
    return choice.write(args.retained + head.retained);
  }
  Tiles<kThreads / 32> tiles(choice.scores, head.rows, choice.ring, s.barriers[threadIdx.x / 32], room.slots);
  choice.begin();
  Bracket bracket;
  if (candidates > kListedAtOnce) {
    bracket = bracket_of<kThreads>(choice.sample(tiles), head.keep, candidates, s.counts, s.sums, s.sample);
    __syncthreads();  // the list overwrites the sample
  }
  choice.compare(bracket, tiles);
  const uint32_t above = s.above, listed = s.listed;
  if (listed <= room.list && above <= head.keep && head.keep - above <= listed - s.unordered) {
    choice.keep_listed(bracket, listed, head.keep - above, args.nan);
  } else {
    choice.count_nan(args.nan);
    choice.keep_unlisted(head.keep);
  }
  choice.write(args.retained + head.retained);
}

// A list has room for the rows of a bracket around the median rank and of the two bins at its ends, and for
// the sample. Tiles are resident if they fit next to that.
template <uint32_t kThreads>
constexpr uint32_t room_left(uint32_t ctas) {
  constexpr uint32_t kAll = 228u << 10,
                     kReserved = 1024;  // shared memory of an SM, and what each CTA reserves of it
  return (kAll / ctas - kReserved - static_cast<uint32_t>(sizeof(SelectShared<kThreads>))) / 128 * 128;
}
template <uint32_t kThreads>
SelectRoom room_for(uint32_t rows_max, uint32_t ctas) {
  constexpr uint32_t kWarps = kThreads / 32, kSampled = kSampleEach * kThreads;
  const uint32_t tiles = (rows_max + kTileRows - 1) / kTileRows;
  const auto list_for = [&](uint32_t sample) {
    const double part = 4.5 / std::sqrt(sample) + 0.025;
    const auto bracket = static_cast<uint32_t>(1.1 * part * rows_max);
    return std::max({bracket, std::min(rows_max, kListedAtOnce), 256u}) / 4 * 4;
  };
  SelectRoom out;
  out.words = tiles * (kTileRows / 32);
  out.slots = (tiles + kWarps - 1) / kWarps;
  out.resident = true, out.ring = tiles * kTileBytes;
  out.list = std::max(list_for(std::min(rows_max, tiles * kTileSample)), kSampled * out.slots);
  if (out.slots <= kSlotsMax && out.bytes() <= room_left<kThreads>(ctas)) return out;
  out.resident = false, out.slots = 1, out.ring = kWarps * kTileBytes;
  out.rounds = rows_max > 65536 ? 2 : 1;
  out.list = std::max(list_for(out.rounds * kSampled), out.rounds * kSampled / 2);
  const auto left = [&](uint32_t some) {
    const size_t fixed = out.ring + out.words * sizeof(uint32_t), all = room_left<kThreads>(some);
    return all > fixed ? static_cast<uint32_t>((all - fixed) / 32 * 4) : 0;
  };
  if (left(ctas) < std::min(out.list, out.rounds * kSampled)) ctas = 1;  // too many rows for several CTAs
  out.list = std::min(out.list, left(ctas));
  if (2 * out.list < out.rounds * kSampled) out.rounds = 1;
  return out;
}

template <uint32_t kThreads, uint32_t kCtas>
cudaError_t launch(const SelectArgs& args, cudaStream_t stream) {
  const SelectRoom room = room_for<kThreads>(args.rows_max, kCtas);
  const cudaError_t error = cudaFuncSetAttribute(
      select_kernel<kThreads, kCtas>, cudaFuncAttributeMaxDynamicSharedMemorySize, room_left<kThreads>(1));
  if (error != cudaSuccess) return error;
  select_kernel<kThreads, kCtas><<<args.count, kThreads, room.bytes(), stream>>>(args, room);
  return cudaGetLastError();
}

}  // namespace

cudaError_t select_entries(const SelectArgs& args, cudaStream_t stream) {
  if (args.rows_max > kRowsMax) return cudaErrorInvalidValue;
  if (args.count == 0 || args.rows_max == 0) return cudaSuccess;
  // Short heads: several CTAs per SM, so that some read while others search. Few heads: a whole SM for each.
  constexpr uint32_t kSms = 132;
  if (args.rows_max <= 12288 && args.count > kSms) return launch<256, 5>(args, stream);
  if (args.rows_max <= 40960 && args.count > kSms) return launch<512, 2>(args, stream);
  return launch<1024, 1>(args, stream);
}

}  // namespace kvtwin
