// The producer warp: takes tiles of work from the list and fills the stages of shared memory by tensor
// copies.
//
// CTAs do not share reads through clusters: multicast to two CTAs is slower
// (docs/notes/2026-11-23-kernels.md#prefill-attention).

#ifndef KVTWIN_KERNELS_ATTENTION_PREFILL_PRODUCER_CUH_
#define KVTWIN_KERNELS_ATTENTION_PREFILL_PRODUCER_CUH_

#include "kernels/attention/prefill_plan.cuh"
#include "kernels/common/cuda_primitives.cuh"
#include "kernels/common/tensor_map.h"

namespace kvtwin::device {

// Layout of shared memory, from an address aligned to 1024: query tile, rings of key and value tiles,
// barriers, the job. A tile of dense rows is [halves of a row][128][64]. A tile of pages is
// [16][halves][8][64], in which a page is one box of adjacent bytes; two boxes of 64 columns per page cost an
// eighth of the speed.
template <int kDim>
struct PrefillGeometry {
  static constexpr uint32_t kHalves = kDim / 64;
  static constexpr uint32_t kHalf = 128 * 128;  // bytes of 128 rows of 64
  static constexpr uint32_t kTile = kHalves * kHalf;
  static constexpr uint32_t kEight = 8 * 128;               // bytes of eight rows of 64
  static constexpr uint32_t kStages = kDim == 128 ? 2 : 4;  // three stages of 128 channels gain nothing
  static constexpr uint32_t kKeys = kTile;
  static constexpr uint32_t kValues = kKeys + kStages * kTile;
  static constexpr uint32_t kBarriers = kValues + kStages * kTile;
  static constexpr uint32_t kQueryFull = kBarriers, kQueryEmpty = kQueryFull + 8, kTail = kQueryEmpty + 8;
  static constexpr uint32_t kKeysFull = kTail + 8;
  static constexpr uint32_t kKeysEmpty = kKeysFull + 8 * kStages;
  static constexpr uint32_t kValuesFull = kKeysEmpty + 8 * kStages;
  static constexpr uint32_t kValuesEmpty = kValuesFull + 8 * kStages;
  static constexpr uint32_t kJob = kBarriers + 256;
  static constexpr uint32_t kShared = kJob + 64 + 1024;  // 1024: for the alignment
  static_assert(kValuesEmpty + 8 * kStages <= kJob);
};

// A tile of work, as passed to the consumers. rows = 0: no more work.
struct PrefillJob {
  PrefillSequence sequence;
  uint32_t first = 0;  // first token of the tile in the chunk
};

struct PrefillMaps {
  CUtensorMap q;          // [halves][rows][query heads][64]
  CUtensorMap k, v;       // [halves][heads][rows][64]
  CUtensorMap pool;       // [groups of 8 rows of all pages][halves][8][64]
  uint32_t page_box = 0;  // rows of a box of `pool`
};

template <int kDim>
struct PrefillProducer {
  using Geometry = PrefillGeometry<kDim>;
  static constexpr uint32_t kHalves = Geometry::kHalves;

  const PrefillShape& shape;
  const PrefillArgs& args;
  const PrefillMaps& maps;
  const uint32_t shared, lane;
  uint32_t stage = 0, parity = 0, tail_parity = 0;

  __device__ PrefillProducer(const PrefillShape& s, const PrefillArgs& a, const PrefillMaps& m, uint32_t at)
      : shape(s), args(a), maps(m), shared(at), lane(threadIdx.x % 32) {}

  // The page of this lane's box of key tile j.
  __device__ uint32_t page_for(const PrefillSequence& s, const KeyTiles& tiles, uint32_t j) const {
    const uint32_t box = lane * maps.page_box;
    if (j >= tiles.paged || box >= tiles.valid(j)) return 0;
    return __ldg(args.pages + s.table + (tiles.first(j) + box) / shape.page_tokens);
  }

  // Starts the copies of key tile j to `target`. They complete on `bar`, on which the producer arrives once.
  __device__ void fill(const PrefillSequence& s, const KeyTiles& tiles, uint32_t j, uint32_t page,
                       bool values, uint32_t target, uint32_t bar) const {
    if (j < tiles.paged) {
      const uint32_t rows = maps.page_box, bytes = rows * 128 * kHalves;
      const uint32_t boxes = (tiles.valid(j) + rows - 1) / rows;
      if (lane == 0) barrier_arrive_expecting(bar, boxes * bytes);
      __syncwarp();
      if (lane >= boxes) return;
      const uint32_t slot = (tiles.first(j) + lane * rows) % shape.page_tokens;
      const uint32_t part = (page * shape.heads_per_page + s.column) * 2 + (values ? 1 : 0);
      copy_box(target + lane * bytes, &maps.pool, bar, 0, 0, 0, (part * shape.page_tokens + slot) / 8);
    } else {
      if (lane == 0) barrier_arrive_expecting(bar, Geometry::kTile);
      __syncwarp();
      if (lane >= kHalves) return;
      copy_box(target + lane * Geometry::kHalf, values ? &maps.v : &maps.k, bar, 0, s.row + tiles.first(j),
               s.head, lane);
    }
  }

  // Zeroes values beyond the sequence's end, which may be NaN or infinite, before the stage is signalled
  // full: 0 * NaN is not 0.
  __device__ void clear_rows_from(uint32_t valid, uint32_t target, bool paged) const {
    const uint32_t half_step = paged ? Geometry::kEight : Geometry::kHalf;
    const uint32_t eight_step = paged ? Geometry::kEight * kHalves : Geometry::kEight;
    for (uint32_t i = valid * 8 + lane; i < kPrefillTileKeys * 8; i += 32) {
      const uint32_t row = target + i / 64 * eight_step + i % 64 * 16;
      for (uint32_t half = 0; half < kHalves; ++half) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(row + half * half_step), "r"(0)
                     : "memory");
      }
    }
    fence_before_bulk();
    __syncwarp();
  }

  __device__ void load_keys(const PrefillSequence& s, const KeyTiles& tiles, uint32_t j,
                            uint32_t page) const {
    barrier_wait(shared + Geometry::kKeysEmpty + 8 * stage, parity ^ 1);
    fill(s, tiles, j, page, false, shared + Geometry::kKeys + stage * Geometry::kTile,
         shared + Geometry::kKeysFull + 8 * stage);
  }
  __device__ void load_values(const PrefillSequence& s, const KeyTiles& tiles, uint32_t j, uint32_t page) {
    const uint32_t target = shared + Geometry::kValues + stage * Geometry::kTile;
    const uint32_t full = shared + Geometry::kValuesFull + 8 * stage, valid = tiles.valid(j);
    barrier_wait(shared + Geometry::kValuesEmpty + 8 * stage, parity ^ 1);
    fill(s, tiles, j, page, true, target, valid < kPrefillTileKeys ? shared + Geometry::kTail : full);
    if (valid < kPrefillTileKeys) {
      __syncwarp();
      barrier_wait(shared + Geometry::kTail, tail_parity);
      tail_parity ^= 1;
      clear_rows_from(valid, target, j < tiles.paged);
      if (lane == 0) barrier_arrive(full);
    }
    if (++stage == Geometry::kStages) stage = 0, parity ^= 1;
  }
  __device__ void load_query(const PrefillSequence& s, uint32_t first) const {
    const uint32_t bar = shared + Geometry::kQueryFull;
    if (lane == 0) barrier_arrive_expecting(bar, tile_tokens(shape) * shape.group * 128 * kHalves);
    __syncwarp();
    if (lane < kHalves) {
      copy_box(shared + lane * Geometry::kHalf, &maps.q, bar, 0, s.head * shape.group, s.row + first, lane);
    }
  }

  __device__ void run(PrefillPlan* plan, PrefillJob* slot) {
    const PrefillWork* const list = work_of(plan);
    const uint32_t count = plan->tiles, tokens = tile_tokens(shape);
    for (uint32_t job = 0;; ++job) {
      const uint32_t at = __shfl_sync(kAllLanes, lane == 0 ? atomicAdd(&plan->next, 1) : 0, 0);
      PrefillWork work;
      PrefillSequence s;
      if (at < count) work = list[at], s = args.table[work.sequence];
      const KeyTiles tiles(s, args.k == nullptr, work.first, tokens);
      for (uint32_t j = 0; j == 0 || j < tiles.count; ++j) {
        const uint32_t page = page_for(s, tiles, j);
        if (at < count) load_keys(s, tiles, j, page);
        if (j == 0) {
          barrier_wait(shared + Geometry::kQueryEmpty, job % 2 ^ 1);
          if (lane == 0) *slot = {s, work.first};
          __syncwarp();
          if (at >= count) {
            if (lane == 0) barrier_arrive(shared + Geometry::kQueryFull);
            return;
          }
          load_query(s, work.first);
        }
        load_values(s, tiles, j, page);
      }
    }
  }
};

// Called by one thread of each CTA that found no more work; the last CTA resets the plan for the next launch.
__device__ inline void leave(PrefillPlan* plan) {
  fence_device();
  if (atomicAdd(&plan->done, 1) == gridDim.x - 1) plan->next = 0, plan->done = 0;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_ATTENTION_PREFILL_PRODUCER_CUH_
