// A consumer warpgroup: computes 64 of a tile's 128 rows, products with wgmma and the online softmax.
//
// Products and softmax overlap twice. Within a warpgroup, the scores of key tile j + 1 are issued before the
// values of tile j, so the exponentials of j + 1 overlap with the products of j. Across the two warpgroups,
// which alternate in issuing products, the exponentials of one overlap with the products of the other.

#ifndef KVTWIN_KERNELS_ATTENTION_PREFILL_CONSUMER_CUH_
#define KVTWIN_KERNELS_ATTENTION_PREFILL_CONSUMER_CUH_

#include "kernels/attention/prefill_producer.cuh"
#include "kernels/common/wgmma.cuh"

namespace kvtwin::device {

// Softmax state of the two rows of a thread, h = 0 and 1.
struct RowState {
  float max[2] = {-INFINITY, -INFINITY};  // of the unscaled scores
  float sum[2] = {};                      // over this thread's columns
};

// scores -> exp2(scale * (score - max)). *shrink is the factor for all earlier sums.
// REQUIRES: each row has seen a KV entry. The first tile has KV entry 0, which every row sees.
__device__ __forceinline__ void exponentiate(float (&s)[64], float scale, RowState* rows,
                                             float (&shrink)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
    for (int j = 1; j < 16; ++j) most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    most = fmaxf(most, rows->max[h]);
    shrink[h] = exp2_fast((rows->max[h] - most) * scale);
    rows->max[h] = most;
    const float shift = most * scale;
    float even = 0, odd = 0;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float& a = s[4 * j + 2 * h];
      float& b = s[4 * j + 2 * h + 1];
      a = exp2_fast(fmaf(a, scale, -shift));
      b = exp2_fast(fmaf(b, scale, -shift));
      even += a, odd += b;
    }
    rows->sum[h] = fmaf(rows->sum[h], shrink[h], even + odd);
  }
}

// Transposes words across four lanes: each holds one word of each of four 16-byte chunks; lane q gets chunk
// q.
__device__ __forceinline__ uint4 gather_chunk(const uint32_t (&w)[4]) {
  const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
  const uint32_t a = __shfl_xor_sync(kAllLanes, odd ? w[0] : w[1], 1);
  const uint32_t b = __shfl_xor_sync(kAllLanes, odd ? w[2] : w[3], 1);
  const uint2 low_chunk = odd ? uint2{a, w[1]} : uint2{w[0], a};
  const uint2 high_chunk = odd ? uint2{b, w[3]} : uint2{w[2], b};
  const uint2 give = high ? low_chunk : high_chunk, keep = high ? high_chunk : low_chunk;
  const uint32_t x = __shfl_xor_sync(kAllLanes, give.x, 2), y = __shfl_xor_sync(kAllLanes, give.y, 2);
  return high ? uint4{x, y, keep.x, keep.y} : uint4{keep.x, keep.y, x, y};
}

template <int kDim>
struct PrefillConsumer {
  using Geometry = PrefillGeometry<kDim>;

  const PrefillShape& shape;
  const PrefillArgs& args;
  const uint32_t shared, which, lane, warp;  // which: warpgroup 0 or 1; warp: index in the warpgroup
  uint32_t key_stage = 0, key_parity = 0, value_stage = 0, value_parity = 0;

  __device__ PrefillConsumer(const PrefillShape& s, const PrefillArgs& a, uint32_t at)
      : shape(s),
        args(a),
        shared(at),
        which(threadIdx.x / 128 - 1),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32 % 4) {}

  // Named barriers 1 and 2 are the turns of warpgroup 0 and 1.
  __device__ void begin_turn() const { named_sync(1 + which, 256); }
  __device__ void end_turn() const { named_arrive(2 - which, 256); }

  __device__ void release(uint32_t bar) const {
    if (lane == 0) barrier_arrive(shared + bar);
  }
  __device__ void release_keys() {
    release(Geometry::kKeysEmpty + 8 * key_stage);
    if (++key_stage == Geometry::kStages) key_stage = 0, key_parity ^= 1;
  }
  __device__ void release_values() {
    release(Geometry::kValuesEmpty + 8 * value_stage);
    if (++value_stage == Geometry::kStages) value_stage = 0, value_parity ^= 1;
  }

  // Every lane arrives for itself, because each has read the job. One arrival per warp after __syncwarp is
  // also correct, but racecheck does not follow it
  // (reports/evidence/validation/2026-11-22-h200-sanitizer.txt).
  __device__ void release_job() const { barrier_arrive(shared + Geometry::kQueryEmpty); }

  // `paged`: which of the two tile layouts the stage has (PrefillGeometry).
  __device__ __forceinline__ void start_scores(float (&s)[64], bool paged) const {
    barrier_wait(shared + Geometry::kKeysFull + 8 * key_stage, key_parity);
    const uint64_t q = k_major(shared + which * (64 * 128), Geometry::kEight);
    const uint64_t k = k_major(shared + Geometry::kKeys + key_stage * Geometry::kTile,
                               paged ? Geometry::kEight * Geometry::kHalves : Geometry::kEight);
    const uint32_t half = (paged ? Geometry::kEight : Geometry::kHalf) / 16;
    hold(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      wgmma_shared(s, q + i / 4 * (Geometry::kHalf / 16) + i % 4 * 2, k + i / 4 * half + i % 4 * 2, i > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void start_values(float (&out)[kDim / 2], uint32_t (&p)[32], bool paged) const {
    barrier_wait(shared + Geometry::kValuesFull + 8 * value_stage, value_parity);
    const uint32_t eight = paged ? Geometry::kEight * Geometry::kHalves : Geometry::kEight;
    const uint64_t v = n_major(shared + Geometry::kValues + value_stage * Geometry::kTile, eight,
                               paged ? Geometry::kEight : Geometry::kHalf);
    hold(out);
    hold(p);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i) wgmma_registers(out, p + 4 * i, v + i * (2 * eight / 16));
    wgmma_commit();
  }

  // Index of row h of this thread in the tile.
  __device__ uint32_t row_of(uint32_t h) const { return which * 64 + warp * 16 + lane / 4 + 8 * h; }

  // Sets the scores of invisible KV entries to -inf. Most tiles have none.
  __device__ __forceinline__ void mask(const PrefillJob& job, const KeyTiles& tiles, uint32_t j,
                                       float (&s)[64]) const {
    const uint32_t valid = tiles.valid(j);
    const int seen = static_cast<int>(job.sequence.past + job.first + 1 - tiles.base(j));
    if (valid == kPrefillTileKeys && seen >= static_cast<int>(kPrefillTileKeys)) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int limit = min(static_cast<int>(valid), seen + static_cast<int>(row_of(h) / shape.group));
      const int mine = limit - static_cast<int>(2 * (lane % 4));
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (8 * i >= mine) s[4 * i + 2 * h] = -INFINITY;
        if (8 * i + 1 >= mine) s[4 * i + 2 * h + 1] = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ static void pack(const float (&s)[64], uint32_t (&p)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
  }

  __device__ __forceinline__ void attend(const PrefillJob& job, RowState* rows, float (&out)[kDim / 2]) {
    const KeyTiles tiles(job.sequence, args.k == nullptr, job.first, tile_tokens(shape));
    const float scale = args.scale * 1.4426950408889634f;
    float s[64] = {}, shrink[2];
    uint32_t p[32];
    begin_turn();
    start_scores(s, tiles.paged > 0);
    end_turn();
    wgmma_wait<0>();
    hold(s);
    release_keys();
    if (tiles.count == 1) release_job();
    mask(job, tiles, 0, s);
    exponentiate(s, scale, rows, shrink);
    pack(s, p);
    for (uint32_t j = 1; j < tiles.count; ++j) {
      hold(p);
      begin_turn();
      start_scores(s, j < tiles.paged);
      start_values(out, p, j - 1 < tiles.paged);
      end_turn();
      wgmma_wait<1>();
      hold(s);
      release_keys();
      if (j + 1 == tiles.count) release_job();
      mask(job, tiles, j, s);
      exponentiate(s, scale, rows, shrink);
      wgmma_wait<0>();
      hold(out);
      hold(p);
      release_values();
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) out[i] *= shrink[i / 2 % 2];
      pack(s, p);
    }
    start_values(out, p, tiles.count - 1 < tiles.paged);
    wgmma_wait<0>();
    hold(out);
    hold(p);
    release_values();
  }

  __device__ __forceinline__ void store(const PrefillJob& job, const RowState& rows,
                                        const float (&out)[kDim / 2]) const {
    const uint32_t heads = shape.kv_heads * shape.group;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = rows.sum[h];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const float inverse = 1 / sum;
      const uint32_t row = row_of(h), token = row / shape.group, head = row % shape.group;
      const bool real = token < tile_tokens(shape) && job.first + token < job.sequence.rows;
      const size_t at =
          size_t{job.sequence.row + job.first + token} * heads + job.sequence.head * shape.group + head;
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        uint32_t words[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int from = 4 * (4 * i + c) + 2 * h;
          words[c] = pack_bf16(out[from] * inverse, out[from + 1] * inverse);
        }
        const uint4 chunk = gather_chunk(words);
        if (real) reinterpret_cast<uint4*>(args.out + at * kDim)[4 * i + lane % 4] = chunk;
      }
      if (real && args.lse != nullptr && lane % 4 == 0) {
        args.lse[at] = rows.max[h] * args.scale + logf(sum);
      }
    }
  }

  __device__ void run(const PrefillJob* slot) {
    if (which == 1) end_turn();  // the first turn is warpgroup 0's
    for (uint32_t parity = 0;; parity ^= 1) {
      barrier_wait(shared + Geometry::kQueryFull, parity);
      const PrefillJob job = *slot;
      __syncwarp();  // wgmma needs converged warps
      if (job.sequence.rows == 0) break;
      RowState rows;
      float out[kDim / 2] = {};
      attend(job, &rows, out);
      store(job, rows, out);
    }
    if (which == 0) begin_turn();  // completes the other warpgroup's last arrival
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_ATTENTION_PREFILL_CONSUMER_CUH_
