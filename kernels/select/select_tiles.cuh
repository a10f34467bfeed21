// A head's scores in shared memory: tiles of 1,024 rows, each owned by one warp, so that warps do not wait
// for one another. A lane has 32 adjacent rows of a tile: one word of bits, without a ballot.

#ifndef KVTWIN_KERNELS_SELECT_SELECT_TILES_CUH_
#define KVTWIN_KERNELS_SELECT_SELECT_TILES_CUH_

#include "kernels/select/select_bins.cuh"

namespace kvtwin::device {

constexpr uint32_t kTileRows = 1024, kTileBytes = kTileRows * sizeof(float);
constexpr uint32_t kSlotsMax =
    4;  // most tiles of a warp that are resident: all of its tiles, or one at a time
constexpr uint32_t kTileSample = 128;  // rows of a tile in a sample

// A warp's tiles: numbers warp + i * kWarps, each in its own slot or all in one.
template <uint32_t kWarps>
class Tiles {
 public:
  // `ring`: [slots][kWarps][kTileRows]. `barriers`: this warp's [slots]. Called by all lanes; starts the
  // first copies.
  __device__ Tiles(const float* scores, uint32_t rows, float* ring, uint64_t* barriers, uint32_t slots)
      : scores_(scores),
        ring_(ring),
        rows_(rows),
        slots_(slots),
        tiles_((rows + kTileRows - 1) / kTileRows),
        barriers_(shared_address(barriers)) {
    if (lane() == 0) {
      for (uint32_t i = 0; i < slots; ++i) barrier_init(barriers_ + 8 * i, 1);
      barrier_init_done();
    }
    __syncwarp();
    for (uint32_t i = 0; i < slots; ++i) fill(i);
  }
  // Number of tiles of this warp.
  __device__ uint32_t count() const { return tiles_ > warp() ? (tiles_ - warp() + kWarps - 1) / kWarps : 0; }
  __device__ uint32_t number(uint32_t i) const { return warp() + i * kWarps; }
  __device__ uint32_t rows(uint32_t i) const { return min(kTileRows, rows_ - number(i) * kTileRows); }

  // Waits for the warp's i-th tile and returns it.
  __device__ const float* wait(uint32_t i) const {
    barrier_wait(barriers_ + 8 * slot(i), slots_ == 1 ? i % 2 : 0);
    return place(i);
  }
  // Lets the next tile overwrite the i-th, which all lanes have read. REQUIRES: one slot.
  __device__ void release(uint32_t i) {
    __syncwarp();
    fill(i + 1);
  }

 private:
  static __device__ uint32_t lane() { return threadIdx.x % 32; }
  static __device__ uint32_t warp() { return threadIdx.x / 32; }
  __device__ uint32_t slot(uint32_t i) const { return slots_ == 1 ? 0 : i; }
  __device__ float* place(uint32_t i) const { return ring_ + (slot(i) * kWarps + warp()) * kTileRows; }
  // Rows outside aligned pieces of 16 bytes are copied by plain loads.
  __device__ void fill(uint32_t i) {
    if (i >= count()) return;
    const float* const from = scores_ + size_t{number(i)} * kTileRows;
    float* const to = place(i);
    const uint32_t all = rows(i), bulk = reinterpret_cast<uint64_t>(from) % 16 == 0 ? all / 4 * 4 : 0;
    for (uint32_t row = bulk + lane(); row < all; row += 32) to[row] = from[row];
    __syncwarp();
    if (lane() > 0) return;
    barrier_arrive_expecting(barriers_ + 8 * slot(i), bulk * sizeof(float));
    if (bulk > 0) copy_bulk(shared_address(to), from, bulk * sizeof(float), barriers_ + 8 * slot(i));
  }

  const float* const scores_;
  float* const ring_;
  const uint32_t rows_, slots_, tiles_, barriers_;
};

// Bits of a lane's 32 rows that are above and within a bracket. Groups of eight lanes start at different
// chunks, which avoids bank conflicts.
struct RowComparison {
  uint32_t above = 0, within = 0;

  __device__ RowComparison(const float* tile, const Bracket& bracket) {
    const uint32_t lane = threadIdx.x % 32;
    const auto* const mine = reinterpret_cast<const float4*>(tile) + lane * 8;
    uint32_t below = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t chunk = (i + lane) % 8;
      const float4 x = mine[chunk];
      const uint32_t more = bit(x.x > bracket.high, 0) | bit(x.y > bracket.high, 1) |
                            bit(x.z > bracket.high, 2) | bit(x.w > bracket.high, 3);
      const uint32_t less = bit(x.x < bracket.low, 0) | bit(x.y < bracket.low, 1) |
                            bit(x.z < bracket.low, 2) | bit(x.w < bracket.low, 3);
      above |= more << 4 * chunk, below |= less << 4 * chunk;
    }
    within = ~(above | below);
  }

 private:
  static __device__ uint32_t bit(bool set, uint32_t at) { return set ? 1u << at : 0; }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SELECT_SELECT_TILES_CUH_
