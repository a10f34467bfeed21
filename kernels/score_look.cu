#include <cmath>

#include "kernels/cell_heads.cuh"
#include "kernels/score_look.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kWarps = 4, kThreads = kWarps * 32;
constexpr uint32_t kTileKeys = 128, kWarpKeys = kTileKeys / kWarps;  // of a CTA, of a warp
constexpr uint32_t kTileRows = 16;                                   // query rows of one mma
constexpr uint32_t kBlocks = kWarpKeys / 8;                          // mmas side by side
constexpr float kLog2e = 1.4426950408889634f;

__host__ __device__ uint32_t tiles_of(uint32_t count, uint32_t each) { return (count + each - 1) / each; }

// Workspace: how a CTA's keys look to each query row, [heads][key tiles][lanes][padded queries] of (largest
// logit, sum of powers of two relative to it); then the logarithm of each row's whole sum.
struct Workspace {
  uint32_t key_tiles, queries, lanes;

  __host__ __device__ explicit Workspace(const LookArgs& args)
      : key_tiles(tiles_of(args.rows_max, kTileKeys)),
        queries(tiles_of(args.queries_max, kTileRows) * kTileRows),
        lanes(args.lanes()) {}
  __host__ __device__ size_t rows() const { return size_t{lanes} * queries; }
  __host__ __device__ size_t part(uint32_t head, uint32_t tile) const {
    return (size_t{head} * key_tiles + tile) * rows();
  }
  __device__ float2* parts(const LookArgs& args) const { return static_cast<float2*>(args.workspace); }
  __device__ float* totals(const LookArgs& args) const {
    return reinterpret_cast<float*>(parts(args) + part(args.count, 0));
  }
};

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

  __device__ void load_keys() {
    for (uint32_t i = threadIdx.x; i < kTileKeys * kChunks; i += kThreads) {
      const uint32_t row = i / kChunks, chunk = i % kChunks;
      // Rows beyond the last are seen by nobody, but must be numbers.
      const uint32_t from = min(first + row, head.cells.rows - 1);
      shared->keys[at(row, chunk)] =
          *key_chunk<kDim>(args.cells, place_of(args.cells, head.cells, from), chunk);
    }
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
  const Workspace workspace(args);
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

// Row by row: the logarithm of the sum over all key tiles. No key is seen: infinity.
__global__ void totals_kernel(const __grid_constant__ LookArgs args) {
  const Workspace workspace(args);
  const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= workspace.rows()) return;
  const LookHead& head = args.heads[blockIdx.y];
  const uint32_t tiles = tiles_of(head.cells.rows, kTileKeys);
  float most = -INFINITY, sum = 0;
  const bool real = row % workspace.queries < tiles_of(head.queries, kTileRows) * kTileRows;
  for (uint32_t tile = 0; real && tile < tiles; ++tile) {
    const float2 part = workspace.parts(args)[workspace.part(blockIdx.y, tile) + row];
    if (part.y == 0) continue;
    const float next = fmaxf(most, part.x);
    sum = sum * exp2f(most - next) + part.y * exp2f(part.x - next);
    most = next;
  }
  workspace.totals(args)[blockIdx.y * workspace.rows() + row] = sum > 0 ? most + log2f(sum) : INFINITY;
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) probabilities_kernel(const __grid_constant__ LookArgs args) {
  extern __shared__ char memory[];
  auto* const shared = reinterpret_cast<typename Looker<kDim>::Shared*>(memory);
  Looker<kDim> looker(args, shared);
  const LookHead& head = looker.head;
  if (looker.first >= head.cells.rows) return;
  const Workspace workspace(args);
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

// ---- scores from sums: a thread has one row

constexpr uint32_t kRowThreads = 256;

__device__ const float* sums_of(const LookArgs& args, uint32_t head, uint32_t of_group) {
  return args.sums + (size_t{head} * args.lanes() + of_group) * args.stride;
}
__device__ float lanes_mean(const LookArgs& args, uint32_t head, uint32_t row) {
  float sum = 0;
  for (uint32_t g = 0; g < args.lanes(); ++g) sum += sums_of(args, head, g)[row];
  return sum / static_cast<float>(args.lanes());
}

__global__ void __launch_bounds__(kRowThreads) window_kernel(const __grid_constant__ WindowScoreArgs args) {
  const LookArgs& look = args.look;
  const LookHead& head = look.heads[blockIdx.y];
  const uint32_t row = blockIdx.x * kRowThreads + threadIdx.x;
  if (row >= head.cells.rows) return;
  if (args.probes && (row < args.skip || row >= head.scored)) return;
  float& out = args.scores[blockIdx.y * args.stride + row - args.skip];
  if (row >= head.scored) {
    out = INFINITY;
    return;
  }
  const float each = look.largest ? 1.0f : 1 / static_cast<float>(max(head.queries, 1u));
  const uint32_t lanes = look.lanes();
  const auto reduce = [&](auto value_of) {
    float joined = value_of(0);
    for (uint32_t g = 1; g < lanes; ++g) {
      const float next = value_of(g);
      joined = args.reduce == LookReduce::kMax ? fmaxf(joined, next) : joined + next;
    }
    return args.reduce == LookReduce::kMean ? joined / static_cast<float>(lanes) : joined;
  };
  const auto pooled = [&](auto value_at) {
    if (args.pool == LookPool::kNone) return value_at(row);
    const uint32_t reach = args.kernel / 2, from = row > reach ? row - reach : 0;
    const uint32_t to = min(row + reach, head.scored - 1);
    float value = args.pool == LookPool::kMax ? -INFINITY : 0;
    for (uint32_t p = from; p <= to; ++p)
      value = args.pool == LookPool::kMax ? fmaxf(value, value_at(p)) : value + value_at(p);
    return args.pool == LookPool::kMax ? value : value / static_cast<float>(args.kernel);
  };
  const auto mean = [&](uint32_t g, uint32_t p) { return sums_of(look, blockIdx.y, g)[p] * each; };
  out = args.pool_first ? reduce([&](uint32_t g) { return pooled([&](uint32_t p) { return mean(g, p); }); })
                        : pooled([&](uint32_t p) { return reduce([&](uint32_t g) { return mean(g, p); }); });
}

__global__ void __launch_bounds__(kRowThreads) layer_kernel(const __grid_constant__ LayerScoreArgs args) {
  const uint32_t first = blockIdx.y * args.kv_heads;
  const LookHead& head = args.look.heads[first];
  const uint32_t row = blockIdx.x * kRowThreads + threadIdx.x;
  if (row >= head.cells.rows) return;
  float sum = 0;
  for (uint32_t h = 0; h < args.kv_heads; ++h) sum += lanes_mean(args.look, first + h, row);
  const float score = row >= head.scored ? INFINITY : sum / static_cast<float>(args.kv_heads);
  for (uint32_t h = 0; h < args.kv_heads; ++h) args.scores[(first + h) * args.stride + row] = score;
}

template <bool kStamp>
__global__ void __launch_bounds__(kRowThreads) marks_kernel(const __grid_constant__ MarkArgs args) {
  const LookArgs& look = args.look;
  const CellHead& cells = look.heads[blockIdx.y].cells;
  const uint32_t row = blockIdx.x * kRowThreads + threadIdx.x;
  if (row >= cells.rows) return;
  float& mark = args.marks[mark_of(look.cells, place_of(look.cells, cells, row))];
  const float mean = lanes_mean(look, blockIdx.y, row);
  if constexpr (kStamp) {
    if (mean > args.alpha) mark = args.now;
  } else {
    mark += mean;
  }
}

// kDim / 8 lanes share a row.
template <int kDim>
__global__ void __launch_bounds__(kRowThreads)
    pointed_kernel(const __grid_constant__ LookArgs args, float* scores, uint64_t stride) {
  constexpr uint32_t kLanes = kDim / 8;
  const LookHead& head = args.heads[blockIdx.y];
  const uint32_t i = blockIdx.x * kRowThreads + threadIdx.x, row = i / kLanes, chunk = i % kLanes;
  const uint32_t from = min(row, head.cells.rows - 1), query = head.q_row + head.queries - 1;
  float mean[8] = {};
  for (uint32_t g = 0; g < args.group; ++g) {
    const __nv_bfloat16* const q =
        args.q + size_t{query} * args.q_stride + size_t{head.q_head + g} * kDim + 8 * chunk;
    float x[8];
    widen(__ldg(reinterpret_cast<const uint4*>(q)), x);
#pragma unroll
    for (int c = 0; c < 8; ++c) mean[c] += x[c] / static_cast<float>(args.group);
  }
  float x[8], product = 0;
  widen(*key_chunk<kDim>(args.cells, place_of(args.cells, head.cells, from), chunk), x);
#pragma unroll
  for (int c = 0; c < 8; ++c) product += x[c] * mean[c];
#pragma unroll
  for (uint32_t by = kLanes / 2; by > 0; by /= 2) product += __shfl_xor_sync(kAllLanes, product, by);
  if (chunk == 0 && row < head.cells.rows) scores[blockIdx.y * stride + row] = product;
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
    const auto rows = static_cast<uint32_t>(Workspace(args).rows());
    totals_kernel<<<dim3(tiles_of(rows, 128), args.count), 128, 0, stream>>>(args);
  }
  probabilities_kernel<kDim><<<grid, kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

dim3 row_grid(const LookArgs& args, uint32_t heads) { return {tiles_of(args.rows_max, kRowThreads), heads}; }
bool nothing(const LookArgs& args) { return args.rows_max == 0 || args.count == 0; }

}  // namespace

size_t look_workspace_bytes(const LookArgs& args) {
  const Workspace workspace(args);
  return workspace.part(args.count, 0) * sizeof(float2) + args.count * workspace.rows() * sizeof(float);
}

cudaError_t look_at_cells(const LookArgs& args, cudaStream_t stream) {
  if (args.group == 0 || args.q_stride % 8 != 0 || args.cells.page_tokens == 0) return cudaErrorInvalidValue;
  if (nothing(args)) return cudaSuccess;
  switch (args.cells.head_dim) {
    case 64:
      return launch<64>(args, stream);
    case 128:
      return launch<128>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t score_window_cells(const WindowScoreArgs& args, cudaStream_t stream) {
  if (args.kernel % 2 == 0) return cudaErrorInvalidValue;
  if (nothing(args.look)) return cudaSuccess;
  window_kernel<<<row_grid(args.look, args.look.count), kRowThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t score_layer_cells(const LayerScoreArgs& args, cudaStream_t stream) {
  if (args.kv_heads == 0 || args.look.count % args.kv_heads != 0) return cudaErrorInvalidValue;
  if (nothing(args.look)) return cudaSuccess;
  layer_kernel<<<row_grid(args.look, args.look.count / args.kv_heads), kRowThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t score_pointed_cells(const LookArgs& look, float* scores, uint64_t stride, cudaStream_t stream) {
  const uint32_t dim = look.cells.head_dim;
  if (dim != 64 && dim != 128) return cudaErrorInvalidValue;
  if (nothing(look)) return cudaSuccess;
  const dim3 grid(tiles_of(look.rows_max, kRowThreads / (dim / 8)), look.count);
  (dim == 64 ? pointed_kernel<64> : pointed_kernel<128>)<<<grid, kRowThreads, 0, stream>>>(look, scores,
                                                                                           stride);
  return cudaGetLastError();
}

cudaError_t gather_marks(const MarkArgs& args, cudaStream_t stream) {
  if (nothing(args.look)) return cudaSuccess;
  marks_kernel<false><<<row_grid(args.look, args.look.count), kRowThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t stamp_cells(const MarkArgs& args, cudaStream_t stream) {
  if (nothing(args.look)) return cudaSuccess;
  marks_kernel<true><<<row_grid(args.look, args.look.count), kRowThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
