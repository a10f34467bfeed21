// The warp that reads: it takes tiles of work from the list and has the copy engine fill shared memory ahead
// of the two warpgroups that compute.
//
// kPair = 2: a cluster of two CTAs works on neighbouring tiles of one sequence, which read the same keys and
// values. Each CTA reads half of every tile for both, so that half as much leaves L2. A stage is filled again
// when the warpgroups of both have released it; each CTA's barrier expects what both send to it.

#ifndef KVTWIN_KERNELS_PREFILL_PRODUCER_CUH_
#define KVTWIN_KERNELS_PREFILL_PRODUCER_CUH_

#include "kernels/prefill_shared.cuh"

namespace kvtwin::device {

template <int kDim, int kPair>
struct PrefillProducer {
  using Geometry = PrefillGeometry<kDim>;
  static constexpr uint32_t kHalves = Geometry::kHalves;
  static constexpr uint32_t kBoth = (1 << kPair) - 1;  // CTAs that a copy goes to

  const PrefillShape& shape;
  const PrefillArgs& args;
  const PrefillMaps& maps;
  const uint32_t shared, lane, rank;
  uint32_t stage = 0, parity = 0;
  uint32_t tail_parities = 0;  // bit by stage

  __device__ PrefillProducer(const PrefillShape& s, const PrefillArgs& a, const PrefillMaps& m, uint32_t at)
      : shape(s),
        args(a),
        maps(m),
        shared(at),
        lane(threadIdx.x % 32),
        rank(kPair == 1 ? 0 : cluster_rank()) {}

  // The page that this lane's box of tile j is in.
  __device__ uint32_t page_for(const PrefillSequence& s, const KeyTiles& tiles, uint32_t j) const {
    const uint32_t box = lane * maps.page_box;
    if (j >= tiles.paged || box >= tiles.valid(j)) return 0;
    return __ldg(args.pages + s.table + (tiles.first(j) + box) / shape.page_tokens);
  }

  __device__ void copy(uint32_t target, const void* map, uint32_t bar, uint32_t y, uint32_t z,
                       uint32_t w) const {
    if constexpr (kPair == 1) {
      copy_box(target, map, bar, 0, y, z, w);
    } else {
      copy_box_to(kBoth, target, map, bar, 0, y, z, w);
    }
  }

  // Starts to fill this CTA's share of the tile at `target`; the whole tile completes on `bar`.
  __device__ void fill(const PrefillSequence& s, const KeyTiles& tiles, uint32_t j, uint32_t page,
                       bool values, uint32_t target, uint32_t bar) const {
    if (j < tiles.paged) {
      const uint32_t rows = maps.page_box, bytes = rows * 128 * kHalves;
      const uint32_t boxes = (tiles.valid(j) + rows - 1) / rows;
      if (lane == 0) barrier_arrive_expecting(bar, boxes * bytes);
      __syncwarp();
      if (lane >= boxes || lane % kPair != rank) return;
      const uint32_t slot = (tiles.first(j) + lane * rows) % shape.page_tokens;
      const uint32_t part = (page * shape.heads_per_page + s.column) * 2 + (values ? 1 : 0);
      copy(target + lane * bytes, &maps.pool, bar, 0, 0, (part * shape.page_tokens + slot) / 8);
    } else {
      if (lane == 0) barrier_arrive_expecting(bar, Geometry::kTile);
      __syncwarp();
      if (lane >= kHalves) return;
      const uint32_t row = rank * (kPrefillTileKeys / kPair);
      copy(target + lane * Geometry::kHalf + row * 128, values ? &maps.v : &maps.k, bar,
           s.row + tiles.first(j) + row, s.head, lane);
    }
  }

  // Values beyond the sequence's end may be anything, and 0 x anything must be 0: they are overwritten before
  // the tile is said to be there.
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
    const uint32_t target = shared + Geometry::kValues + stage * Geometry::kTile, valid = tiles.valid(j);
    const uint32_t full = shared + Geometry::kValuesFull + 8 * stage,
                   tail = shared + Geometry::kTail + 8 * stage;
    barrier_wait(shared + Geometry::kValuesEmpty + 8 * stage, parity ^ 1);
    fill(s, tiles, j, page, true, target, valid < kPrefillTileKeys ? tail : full);
    if (valid < kPrefillTileKeys) {
      __syncwarp();
      barrier_wait(tail, tail_parities >> stage & 1);
      tail_parities ^= 1u << stage;
      clear_rows_from(valid, target, j < tiles.paged);
      if (lane == 0) barrier_arrive(full);
    }
    if (++stage == Geometry::kStages) stage = 0, parity ^= 1;
  }
  __device__ void load_query(const PrefillSequence& s, uint32_t first) const {
    const uint32_t bar = shared + Geometry::kQueryFull;
    if (lane == 0) barrier_arrive_expecting(bar, tile_tokens(shape) * shape.group * 128 * kHalves);
    __syncwarp();
    if (lane >= kHalves) return;
    copy_box(shared + lane * Geometry::kHalf, &maps.q, bar, 0, s.head * shape.group,
             s.row + first + rank * tile_tokens(shape), lane);
  }

  // Which tile of work is next. CTA 0 of a cluster asks, and writes it down for both. A slot may be written
  // again without asking: CTA 0 is at most kStages tiles of keys ahead of what both have released, hence
  // fewer than kTickets tiles of work ahead of what CTA 1 has read.
  __device__ uint32_t take(PrefillPlan* plan, uint32_t job) const {
    const uint32_t slot = job % Geometry::kTickets;
    const uint32_t ticket = shared + Geometry::kTicket + 4 * slot,
                   full = shared + Geometry::kTicketFull + 8 * slot;
    uint32_t at = 0;
    if (rank == 0) at = __shfl_sync(kAllLanes, lane == 0 ? atomicAdd(&plan->next, 1) : 0, 0);
    if constexpr (kPair > 1) {
      if (rank == 0 && lane < kPair) {
        store_in_cluster(in_cluster(ticket, lane), at);
        barrier_arrive_in_cluster(in_cluster(full, lane));
      }
      __syncwarp();
      barrier_wait_cluster(full, job / Geometry::kTickets % 2);
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(at) : "r"(ticket) : "memory");
    }
    return at;
  }

  __device__ void run(PrefillPlan* plan, PrefillJob* slot) {
    const PrefillWork* const list = work_of(plan);
    const uint32_t count = plan->tiles, tokens = kPair * tile_tokens(shape);
    for (uint32_t job = 0;; ++job) {
      const uint32_t at = take(plan, job);
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

// By one thread of each cluster that found no more work: the last one makes the plan fit for the next launch.
__device__ inline void leave(PrefillPlan* plan, uint32_t clusters) {
  fence_device();
  if (atomicAdd(&plan->done, 1) == clusters - 1) plan->next = 0, plan->done = 0;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PREFILL_PRODUCER_CUH_
