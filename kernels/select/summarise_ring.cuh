// Summaries of larger pages: each warp has a ring of pages' keys in shared memory, filled by bulk copies. The
// ring holds more bytes in flight than registers could, and keys that are read twice (cuboid) stay in it.

#ifndef KVTWIN_KERNELS_SELECT_SUMMARISE_RING_CUH_
#define KVTWIN_KERNELS_SELECT_SUMMARISE_RING_CUH_

#include "kernels/cache_ops/page_moves.h"
#include "kernels/common/kv_block.cuh"

namespace kvtwin::device {

constexpr uint32_t kRingWarps = 16, kRingStages = 4;  // most warps of a CTA; most stages of a warp

struct SummaryRing {
  uint32_t stages = 0;                         // stages of a warp
  uint32_t slot_bytes = 0;                     // bytes of a page's keys
  static constexpr uint32_t kBarriers = 1024;  // bytes before the first slot

  __host__ __device__ uint32_t shared(uint32_t warps) const {
    return kBarriers + warps * stages * slot_bytes;
  }
};

// A page in shared memory, kChannels channels per lane. Sums are in the order of the definition.
template <PageSummaryKind kKind, int kChannels>
struct HeldPage {
  static constexpr uint32_t kDim = kChannels * 32, kRow = kDim * 2;
  static constexpr int kPairs = kChannels / 2;

  uint32_t lane_at;  // address of KV entry 0 before the swizzle; slots are aligned to 128
  uint32_t kv_entries;

  __device__ HeldPage(uint32_t slot, uint32_t count, uint32_t lane)
      : lane_at(slot + lane * kChannels * 2), kv_entries(count) {}

  // Calls take(words) for each KV entry in order.
  template <typename Take>
  __device__ __forceinline__ void each(const Take& take) const {
    uint32_t first = 0;
    for (; first + 8 <= kv_entries; first += 8) {
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) take_one(first, i, take);
    }
#pragma unroll
    for (uint32_t i = 0; i < 7; ++i) {
      if (first + i < kv_entries) take_one(first, i, take);
    }
  }

  __device__ __forceinline__ void summarise(float (&high)[kChannels], float (&low)[kChannels]) const {
    constexpr uint32_t kMost = 0x7f807f80, kLeast = 0xff80ff80;  // both infinities, in both halves
    uint32_t most[kPairs], least[kPairs];
    float sum[kChannels] = {};
#pragma unroll
    for (int i = 0; i < kPairs; ++i) most[i] = kLeast, least[i] = kMost;
    each([&](const uint32_t(&words)[kPairs]) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (kKind == PageSummaryKind::kMean) {
          sum[2 * i] += first_of(words[i]), sum[2 * i + 1] += second_of(words[i]);
        } else {
          most[i] = word_of(__hmax2(pair_of(most[i]), pair_of(words[i])));
          least[i] = word_of(__hmin2(pair_of(least[i]), pair_of(words[i])));
        }
      }
    });
    const auto count = static_cast<float>(kv_entries);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      high[2 * i] = first_of(most[i]), high[2 * i + 1] = second_of(most[i]);
      low[2 * i] = first_of(least[i]), low[2 * i + 1] = second_of(least[i]);
    }
    if (kKind == PageSummaryKind::kMean) {
#pragma unroll
      for (int i = 0; i < kChannels; ++i) high[i] = low[i] = sum[i] / count;
    } else if (kKind == PageSummaryKind::kCuboid) {
      float center[kChannels];
#pragma unroll
      for (int i = 0; i < kChannels; ++i) center[i] = (high[i] + low[i]) * 0.5f;
      each([&](const uint32_t(&words)[kPairs]) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          sum[2 * i] += fabsf(center[2 * i] - first_of(words[i]));
          sum[2 * i + 1] += fabsf(center[2 * i + 1] - second_of(words[i]));
        }
      });
#pragma unroll
      for (int i = 0; i < kChannels; ++i)
        high[i] = center[i] + sum[i] / count, low[i] = center[i] - sum[i] / count;
    }
  }

 private:
  template <typename Take>
  __device__ __forceinline__ void take_one(uint32_t first, uint32_t i, const Take& take) const {
    uint32_t words[kPairs];
    const uint32_t at = (lane_at ^ i * 16) + (first + i) * kRow;  // the swizzle of kv_block.cuh
    if constexpr (kPairs == 2) {
      const uint2 both = load_words2(at);
      words[0] = both.x, words[1] = both.y;
    } else {
      words[0] = load_word(at);
    }
    take(words);
  }
  __device__ static float first_of(uint32_t word) { return __uint_as_float(word << 16); }
  __device__ static float second_of(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
  __device__ static __nv_bfloat162 pair_of(uint32_t word) {
    return *reinterpret_cast<__nv_bfloat162*>(&word);
  }
  __device__ static uint32_t word_of(__nv_bfloat162 pair) { return *reinterpret_cast<uint32_t*>(&pair); }
};

// Warps take pages in turn. Of a warp's pages 0, 1, ..., lane i holds the descriptors of those of index 32 n
// + i.
template <PageSummaryKind kKind, int kChannels>
struct SummaryWorker {
  using Page = HeldPage<kKind, kChannels>;
  const SummaryArgs& args;
  const SummaryRing& ring;
  const uint32_t lane, bars, slots, step, mine;
  SummaryPage now, ahead;
  uint32_t base = 0;

  __device__ SummaryWorker(const SummaryArgs& a, const SummaryRing& r, uint32_t memory)
      : args(a),
        ring(r),
        lane(threadIdx.x % 32),
        bars(memory + threadIdx.x / 32 * r.stages * 8),
        slots(memory + SummaryRing::kBarriers + threadIdx.x / 32 * r.stages * r.slot_bytes),
        step(gridDim.x * (blockDim.x / 32)),
        mine(threadIdx.x / 32 * gridDim.x + blockIdx.x) {
    if (lane < ring.stages) barrier_init(bars + 8 * lane, 1);
    barrier_init_done();
    __syncwarp();
  }

  __device__ uint32_t count() const { return mine < args.count ? (args.count - mine - 1) / step + 1 : 0; }
  __device__ SummaryPage entry(uint32_t i) const {
    return i < count() ? args.pages[mine + size_t{i} * step] : SummaryPage{};
  }
  __device__ void start(uint32_t i, uint32_t stage) const {
    const bool soon = i - base < 32;
    const uint32_t block = __shfl_sync(kAllLanes, soon ? now.block : ahead.block, i % 32);
    const uint32_t kv_entries = __shfl_sync(kAllLanes, soon ? now.kv_entries : ahead.kv_entries, i % 32);
    if (lane != 0) return;
    const KvBlockShape shape{args.page_tokens, Page::kDim};
    barrier_arrive_expecting(bars + 8 * stage, kv_entries * Page::kRow);
    if (kv_entries == 0) return;
    copy_bulk_once(slots + stage * ring.slot_bytes, args.pool + block * shape.numbers(),
                   kv_entries * Page::kRow, bars + 8 * stage);
  }
  __device__ void run() {
    const uint32_t all = count();
    now = entry(lane), ahead = entry(32 + lane);
    for (uint32_t i = 0; i < ring.stages && i < all; ++i) start(i, i);
    uint32_t stage = 0, parity = 0;
    for (uint32_t i = 0; i < all; ++i) {
      const uint32_t kv_entries = __shfl_sync(kAllLanes, now.kv_entries, i % 32);
      const uint32_t target = __shfl_sync(kAllLanes, now.target, i % 32);
      barrier_wait(bars + 8 * stage, parity);
      float high[kChannels], low[kChannels];
      Page(slots + stage * ring.slot_bytes, kv_entries, lane).summarise(high, low);
      __syncwarp();
      if (i + ring.stages < all) start(i + ring.stages, stage);
      if (kv_entries > 0) {
        __nv_bfloat16* const out = args.out + size_t{target} * 2 * Page::kDim + lane * kChannels;
        store(high, out), store(low, out + Page::kDim);
      }
      if (++stage == ring.stages) stage = 0, parity ^= 1;
      if (i % 32 == 31) base += 32, now = ahead, ahead = entry(base + 32 + lane);
    }
  }
  __device__ static void store(const float (&x)[kChannels], __nv_bfloat16* at) {
#pragma unroll
    for (int i = 0; i < kChannels; i += 2) {
      reinterpret_cast<uint32_t*>(at)[i / 2] = pack_bf16(x[i], x[i + 1]);
    }
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SELECT_SUMMARISE_RING_CUH_
