#include <algorithm>
#include <cmath>

#include "kernels/cell_heads.cuh"
#include "kernels/look_parts.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kWarps = 4, kThreads = kWarps * 32;
constexpr uint32_t kTileKeys = kLookTileKeys, kWarpKeys = kTileKeys / kWarps;  // of a CTA, of a warp
constexpr uint32_t kTileRows = kLookTileRows;
constexpr uint32_t kBlocks = kWarpKeys / 8;  // mmas side by side
static_assert(kTileKeys == kThreads);

// Sixteen bytes by an ordinary thread, not waited for before wait_async_copies(); not kept in L1.
__device__ void copy_async(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
__device__ void wait_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What both passes share: 128 keys of a head, in registers as operands, and query rows that come by, sixteen
// at a time.
template <int kDim>
struct Looker {
  static constexpr uint32_t kChunks = kDim / 8, kSteps = kDim / 16;
  static constexpr uint32_t kHeld = kTileRows * kChunks / kThreads;  // chunks of a query tile, by thread

  struct Shared {
    uint4 keys[kTileKeys * kChunks];
    uint4 queries[2][kTileRows * kChunks];
    float2 parts[kWarps][kTileRows];
    CellPlace places[kTileKeys];
  };

  const LookArgs& args;
  const LookHead head;
  const uint32_t first;  // key row of the tile
  const uint32_t lane, warp, tiles;
  Shared* const shared;
  uint32_t keys[kBlocks][kSteps][2];
  uint4 coming[kHeld];

  __device__ Looker(const LookArgs& a, Shared* s)
      : args(a),
        head(a.heads[blockIdx.y]),
        first(blockIdx.x * kTileKeys),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        tiles(tiles_of(head.queries, kTileRows)),
        shared(s) {}

  // In the order in which query tiles come: lane by lane, or the group's heads of the same rows together.
  __device__ uint32_t all_tiles() const { return tiles * args.group; }
  __device__ uint32_t head_of(uint32_t t) const { return args.join_logits ? t % args.group : t / tiles; }
  __device__ uint32_t row_of(uint32_t t) const {
    return (args.join_logits ? t / args.group : t % tiles) * kTileRows;
  }
  __device__ uint32_t visible(uint32_t row) const {
    return row < head.queries ? __ldg(args.visible + head.visible + row) : 0;
  }
  // Counts ascend: if the last row of the tile sees nothing of these keys, none does.
  __device__ bool sees(uint32_t t) const {
    return visible(min(row_of(t) + kTileRows, head.queries) - 1) > first;
  }

  static __device__ uint32_t at(uint32_t row, uint32_t chunk) { return row * kChunks + (chunk ^ (row & 7)); }

  // All of a CTA's keys are on their way at once: where they lie is known before the first is asked for.
  __device__ void load_keys() {
    // Rows beyond the last are seen by nobody, but must be numbers.
    const uint32_t row = min(first + threadIdx.x, head.cells.rows - 1), chunk = threadIdx.x % kChunks;
    shared->places[threadIdx.x] = place_of(args.cells, head.cells, row);
    __syncthreads();
#pragma unroll
    for (uint32_t of = threadIdx.x / kChunks; of < kTileKeys; of += kThreads / kChunks)
      copy_async(shared_address(&shared->keys[at(of, chunk)]),
                 key_chunk<kDim>(args.cells, shared->places[of], chunk));
    wait_async_copies();
    __syncthreads();
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; b += 2) {
#pragma unroll
      for (uint32_t step = 0; step < kSteps; ++step) {
        const uint32_t row = warp * kWarpKeys + b * 8 + lane / 16 * 8 + lane % 8;
        const Fragment4 f = load_matrices(shared_address(&shared->keys[at(row, 2 * step + lane / 8 % 2)]));
        keys[b][step][0] = f.r[0], keys[b][step][1] = f.r[1];
        keys[b + 1][step][0] = f.r[2], keys[b + 1][step][1] = f.r[3];
      }
    }
  }

  __device__ void fetch(uint32_t t) {
    const uint32_t query_head = head.q_head + head_of(t), row = row_of(t);
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      const uint32_t i = k * kThreads + threadIdx.x;
      const uint32_t from = head.q_row + min(row + i / kChunks, head.queries - 1);
      coming[k] = __ldg(reinterpret_cast<const uint4*>(args.q + size_t{from} * args.q_stride +
                                                       size_t{query_head} * kDim + 8 * (i % kChunks)));
    }
  }
  __device__ void put(uint32_t t) {
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      const uint32_t i = k * kThreads + threadIdx.x;
      shared->queries[t % 2][at(i / kChunks, i % kChunks)] = coming[k];
    }
  }

  // Logits of the tile in powers of two, [16 rows][32 keys of the warp]: row lane / 4 and that + 8, columns
  // 8 b + 2 (lane % 4) and the next.
  __device__ void multiply(uint32_t t, float (&s)[kBlocks][4]) const {
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[b][i] = 0;
    }
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
      const uint32_t row = lane / 8 % 2 * 8 + lane % 8;
      const Fragment4 q =
          load_matrices(shared_address(&shared->queries[t % 2][at(row, 2 * step + lane / 16)]));
#pragma unroll
      for (uint32_t b = 0; b < kBlocks; ++b) multiply_add(s[b], q, keys[b][step][0], keys[b][step][1]);
    }
    const float scale = args.scale * kLog2e;
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[b][i] *= scale;
    }
  }

  // visit(lane of the group, first row, logits): joined logits if they are joined. What is not visible is
  // -infinity. All threads of the CTA together.
  template <typename Visit>
  __device__ void for_rows(Visit visit) {
    const uint32_t all = all_tiles();
    float joined[kBlocks][4];
    fetch(0);
    for (uint32_t t = 0; t < all; ++t) {
      put(t);
      __syncthreads();
      if (t + 1 < all) fetch(t + 1);
      float s[kBlocks][4];
      const bool seen = sees(t);
      if (seen) multiply(t, s);
      const uint32_t row = row_of(t);
      const uint32_t visible_of[2] = {visible(row + lane / 4), visible(row + lane / 4 + 8)};
#pragma unroll
      for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t key = first + warp * kWarpKeys + b * 8 + lane % 4 * 2 + i % 2;
          if (!seen || key >= visible_of[i / 2]) s[b][i] = -INFINITY;
          joined[b][i] = args.join_logits && head_of(t) > 0 ? fmaxf(joined[b][i], s[b][i]) : s[b][i];
        }
      }
      if (args.join_logits && head_of(t) + 1 < args.group) continue;
      visit(args.join_logits ? 0 : head_of(t), row, joined);
    }
  }
};

template <int kDim>
__global__ void __launch_bounds__(kThreads) denominators_kernel(const __grid_constant__ LookArgs args) {
  extern __shared__ char memory[];
  auto* const shared = reinterpret_cast<typename Looker<kDim>::Shared*>(memory);
  Looker<kDim> looker(args, shared);
  if (looker.first >= looker.head.cells.rows || looker.head.queries == 0) return;
  looker.load_keys();
  const ManyWorkspace workspace(args);
  float2* const out = workspace.parts(args) + workspace.part(blockIdx.y, blockIdx.x);
  const uint32_t lane = looker.lane;
  looker.for_rows([&](uint32_t of_group, uint32_t row, const float(&s)[kBlocks][4]) {
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) largest[i / 2] = fmaxf(largest[i / 2], s[b][i]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (uint32_t by = 1; by <= 2; by *= 2)
        largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], by));
    }
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i / 2] += s[b][i] == -INFINITY ? 0 : exp2f(s[b][i] - largest[i / 2]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (uint32_t by = 1; by <= 2; by *= 2) sum[r] += __shfl_xor_sync(kAllLanes, sum[r], by);
      if (lane % 4 == 0) shared->parts[looker.warp][lane / 4 + 8 * r] = {largest[r], sum[r]};
    }
    __syncthreads();
    if (threadIdx.x < kTileRows) {
      float most = -INFINITY, all = 0;
      for (uint32_t w = 0; w < kWarps; ++w) most = fmaxf(most, shared->parts[w][threadIdx.x].x);
      for (uint32_t w = 0; w < kWarps; ++w) {
        const float2 part = shared->parts[w][threadIdx.x];
        if (part.y > 0) all += part.y * exp2f(part.x - most);
      }
      out[size_t{of_group} * workspace.queries + row + threadIdx.x] = {most, all};
    }
    __syncthreads();
  });
}

// Row by row: the logarithm of the sum over all key tiles. No key is seen: infinity. Sixteen threads a row.
constexpr uint32_t kTotalRows = 32, kTotalParts = 16;
__global__ void __launch_bounds__(kTotalRows* kTotalParts)
    totals_kernel(const __grid_constant__ LookArgs args) {
  __shared__ float2 parts[kTotalParts][kTotalRows];
  const ManyWorkspace workspace(args);
  const uint32_t row = blockIdx.x * kTotalRows + threadIdx.x;
  const LookHead& head = args.heads[blockIdx.y];
  const uint32_t tiles = tiles_of(head.cells.rows, kTileKeys);
  const bool real =
      row < workspace.rows() && row % workspace.queries < tiles_of(head.queries, kTileRows) * kTileRows;
  float2 all = {-INFINITY, 0};
#pragma unroll 4
  for (uint32_t tile = threadIdx.y; tile < (real ? tiles : 0); tile += kTotalParts)
    all = joined(all, workspace.parts(args)[workspace.part(blockIdx.y, tile) + row]);
  parts[threadIdx.y][threadIdx.x] = all;
  __syncthreads();
  if (threadIdx.y > 0 || row >= workspace.rows()) return;
  for (uint32_t i = 1; i < kTotalParts; ++i) all = joined(all, parts[i][threadIdx.x]);
  workspace.totals(args)[blockIdx.y * workspace.rows() + row] = all.y > 0 ? all.x + log2f(all.y) : INFINITY;
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) probabilities_kernel(const __grid_constant__ LookArgs args) {
  extern __shared__ char memory[];
  auto* const shared = reinterpret_cast<typename Looker<kDim>::Shared*>(memory);
  Looker<kDim> looker(args, shared);
  const LookHead& head = looker.head;
  if (looker.first >= head.cells.rows) return;
  const ManyWorkspace workspace(args);
  const float* const totals = workspace.totals(args) + blockIdx.y * workspace.rows();
  const uint32_t lane = looker.lane, tile_rows = looker.tiles * kTileRows;
  float sum[kBlocks][2] = {};
  const auto store = [&](uint32_t of_group) {
    float* const out = args.sums + (size_t{blockIdx.y} * args.lanes() + of_group) * args.stride;
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        for (uint32_t by = 4; by < 32; by *= 2) {
          const float other = __shfl_xor_sync(kAllLanes, sum[b][i], by);
          sum[b][i] = args.largest ? fmaxf(sum[b][i], other) : sum[b][i] + other;
        }
        const uint32_t key = looker.first + looker.warp * kWarpKeys + b * 8 + lane * 2 + i;
        if (lane < 4 && key < head.cells.rows) out[key] = sum[b][i];
        sum[b][i] = 0;
      }
    }
  };
  if (head.queries == 0) {
    for (uint32_t g = 0; g < args.lanes(); ++g) store(g);
    return;
  }
  looker.load_keys();
  looker.for_rows([&](uint32_t of_group, uint32_t row, const float(&s)[kBlocks][4]) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t mine = row + lane / 4 + 8 * r;
      const float total = totals[size_t{of_group} * workspace.queries + mine];
      const float weight = args.weigh_visible ? static_cast<float>(looker.visible(mine)) : 1.0f;
#pragma unroll
      for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const float p = weight * exp2f(s[b][2 * r + i] - total);
          sum[b][i] = args.largest ? fmaxf(sum[b][i], p) : sum[b][i] + p;
        }
      }
    }
    if (row + kTileRows >= tile_rows) store(of_group);
  });
}

template <int kDim>
cudaError_t launch(const LookArgs& args, cudaStream_t stream) {
  constexpr int kBytes = sizeof(typename Looker<kDim>::Shared);
  const dim3 grid(tiles_of(args.rows_max, kTileKeys), args.count);
  for (const auto kernel : {denominators_kernel<kDim>, probabilities_kernel<kDim>}) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
  }
  if (args.queries_max > 0) {
    denominators_kernel<kDim><<<grid, kThreads, kBytes, stream>>>(args);
    const auto rows = static_cast<uint32_t>(ManyWorkspace(args).rows());
    totals_kernel<<<dim3(tiles_of(rows, kTotalRows), args.count), dim3(kTotalRows, kTotalParts), 0, stream>>>(
        args);
  }
  probabilities_kernel<kDim><<<grid, kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

size_t look_workspace_bytes(const LookArgs& args) {
  // Whether logits are joined may not be known yet.
  const size_t few = has_few_columns(args) ? FewWorkspace(args).bytes(args) : 0;
  return std::max(ManyWorkspace(args).bytes(args), few);
}

cudaError_t look_at_cells(const LookArgs& args, cudaStream_t stream) {
  if (args.group == 0 || args.q_stride % 8 != 0 || args.cells.page_tokens == 0) return cudaErrorInvalidValue;
  if (args.cells.head_dim != 64 && args.cells.head_dim != 128) return cudaErrorInvalidValue;
  if (args.rows_max == 0 || args.count == 0) return cudaSuccess;
  if (has_few_columns(args) && !args.join_logits) return look_with_few(args, stream);
  return args.cells.head_dim == 64 ? launch<64>(args, stream) : launch<128>(args, stream);
}

}  // namespace kvtwin
