#include <algorithm>
#include <cmath>

#include "kernels/common/kv_entry_heads.cuh"
#include "kernels/scoring/cuda/score_intent_cuda.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kTile = kThreads;  // rows of a CTA, one per thread
constexpr uint32_t kEach = 4;         // consecutive rows that a lane loads at once
constexpr uint32_t kCopies = 32;      // copies of the scores that a CTA writes

// Layout of the workspace between intent_layers and the later kernels. `tiles`, `layers`: of one launch.
struct Workspace {
  uint32_t tiles, layers;
  float* logits;  // [layers][query_heads][rows]
  float2*
      parts;  // [layers][query_heads][tiles]: the largest logit, and the sum of exponentials relative to it
  float2* totals;   // [layers][query_heads]: the largest logit, and the reciprocal of the sum
  float* of_layer;  // [all layers][rows]

  static uint32_t tiles_of(const IntentScoreArgs& args) { return (args.rows + kTile - 1) / kTile; }
  static uint32_t layers_of(const IntentScoreArgs& args) {
    const uint64_t one = std::max(uint64_t{args.query_heads} * args.rows, uint64_t{1});
    return static_cast<uint32_t>(std::clamp<uint64_t>(args.logits_max / one, 1, std::max(args.layers, 1u)));
  }
  static size_t floats(const IntentScoreArgs& args) {
    return size_t{layers_of(args)} * args.query_heads * (2 * (tiles_of(args) + 1) + args.rows) +
           size_t{args.layers} * args.rows;
  }
  explicit Workspace(const IntentScoreArgs& args)
      : tiles(tiles_of(args)),
        layers(layers_of(args)),
        logits(args.workspace + size_t{2} * layers * args.query_heads * (tiles + 1)),
        parts(reinterpret_cast<float2*>(args.workspace)),
        totals(parts + size_t{layers} * args.query_heads * tiles),
        of_layer(logits + size_t{layers} * args.query_heads * args.rows) {}
};

// Sums each of kCount numbers over kLanes adjacent lanes and distributes the sums: x[0] and following are
// those from spread_first() on.
template <uint32_t kLanes, uint32_t kCount>
__device__ __forceinline__ void spread_sums(float* x, uint32_t lane) {
  constexpr uint32_t kBy = kLanes / 2, kLeft = kCount > 1 ? kCount / 2 : 1;
  if constexpr (kCount == 1) {
    x[0] += __shfl_xor_sync(kAllLanes, x[0], kBy);
  } else {
    const bool upper = lane & kBy;
#pragma unroll
    for (uint32_t i = 0; i < kLeft; ++i) {
      const float mine = upper ? x[kLeft + i] : x[i], other = upper ? x[i] : x[kLeft + i];
      x[i] = mine + __shfl_xor_sync(kAllLanes, other, kBy);
    }
  }
  if constexpr (kBy > 1) spread_sums<kBy, kLeft>(x, lane);
}
template <uint32_t kLanes, uint32_t kCount>
__device__ uint32_t spread_first(uint32_t lane) {
  return kCount >= kLanes ? lane * (kCount / kLanes) : lane / (kLanes / kCount);
}

// The sum of exponentials of `sum` relative to another largest logit; 0 if all its logits are masked.
__device__ float against(float2 sum, float largest) {
  return sum.x == largest ? sum.y : sum.y * expf(sum.x - largest);
}
__device__ float2 merged(float2 a, float2 b) {
  const float largest = fmaxf(a.x, b.x);
  return {largest, against(a, largest) + against(b, largest)};
}
__device__ float2 merged_over_warp(float2 mine) {
  float largest = mine.x;
#pragma unroll
  for (uint32_t by = 16; by > 0; by /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, by));
  float sum = against(mine, largest);
#pragma unroll
  for (uint32_t by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
  return {largest, sum};
}

__device__ bool is_candidate(const IntentScoreArgs& args, uint32_t row) {
  if (row >= args.rows) return false;
  for (uint32_t i = 0; i < args.forced_count; ++i) {
    if (row >= args.forced[i].begin && row < args.forced[i].end) return false;
  }
  return true;
}

// One CTA's rows of one KV head, and the kHeads query heads from `first` on.
template <int kDim, uint32_t kHeads>
struct Tile {
  static constexpr uint32_t kLanes = kDim / 8, kSide = kThreads / kLanes;  // kSide: rows processed at a time
  static constexpr uint32_t kStep = kSide * kEach;
  static constexpr uint32_t kPadded = kTile + 8;  // padding that spreads a warp's stores over the banks

  KvEntryPlace places[kTile];
  float memory[kHeads][kDim];
  float logits[kHeads][kPadded];
  float2 of_warp[kHeads][kWarps];

  __device__ void load_memory(const float* from, uint32_t heads) {
    for (uint32_t i = threadIdx.x; i < kHeads * kDim; i += kThreads)
      memory[i / kDim][i % kDim] = i / kDim < heads ? __ldg(from + i) : 0;
  }
  __device__ void load_keys(const KvEntryPool& kv_entries, uint32_t step, uint4 (&held)[kEach]) const {
    const uint32_t row = step * kStep + threadIdx.x / kLanes * kEach;
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k)
      held[k] = load_once(key_chunk<kDim>(kv_entries, places[row + k], threadIdx.x % kLanes));
  }
  __device__ void multiply(uint32_t step, const uint4 (&held)[kEach]) {
    const uint32_t lane = threadIdx.x % kLanes, row = step * kStep + threadIdx.x / kLanes * kEach;
    float x[kEach][8], product[kHeads * kEach] = {};
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) widen(held[k], x[k]);
#pragma unroll
    for (uint32_t g = 0; g < kHeads; ++g) {
      const float4 low = *reinterpret_cast<const float4*>(&memory[g][8 * lane]),
                   high = *reinterpret_cast<const float4*>(&memory[g][8 * lane + 4]);
      const float m[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (uint32_t k = 0; k < kEach; ++k) {
#pragma unroll
        for (int c = 0; c < 8; ++c) product[g * kEach + k] += x[k][c] * m[c];
      }
    }
    spread_sums<kLanes, kHeads * kEach>(product, lane);
    const uint32_t first = spread_first<kLanes, kHeads * kEach>(lane);
#pragma unroll
    for (uint32_t i = 0; i < (kHeads * kEach + kLanes - 1) / kLanes; ++i)
      logits[(first + i) / kEach][row + (first + i) % kEach] = product[i];
  }
};

template <int kDim, uint32_t kHeads>
__global__ void __launch_bounds__(kThreads)
    logits_kernel(const __grid_constant__ IntentScoreArgs args, const __grid_constant__ Workspace to,
                  uint32_t first_layer) {
  using Mine = Tile<kDim, kHeads>;
  __shared__ __align__(16) Mine tile;
  const uint32_t row = blockIdx.x * kTile + threadIdx.x, layer = blockIdx.y / args.kv_heads;
  const uint32_t head = blockIdx.y % args.kv_heads, group = args.query_heads / args.kv_heads;
  const uint32_t warp = threadIdx.x / 32;
  const KvEntryHead of = args.heads[first_layer * args.kv_heads + blockIdx.y];
  const bool candidate = is_candidate(args, row);
  const bool any = __syncthreads_or(candidate);
  if (any) tile.places[threadIdx.x] = place_of(args.kv_entries, of, min(row, args.rows - 1));
  for (uint32_t g0 = 0; g0 < group; g0 += kHeads) {
    const uint32_t heads = min(kHeads, group - g0), query = head * group + g0;
    const size_t of_query = size_t{layer} * args.query_heads + query;
    tile.load_memory(args.memory + (size_t{first_layer + layer} * args.query_heads + query) * kDim, heads);
    __syncthreads();
    uint4 held[kEach], next[kEach];
    if (any) tile.load_keys(args.kv_entries, 0, next);
    for (uint32_t step = 0; any && step < kTile / Mine::kStep; ++step) {
#pragma unroll
      for (uint32_t k = 0; k < kEach; ++k) held[k] = next[k];
      if (step + 1 < kTile / Mine::kStep) tile.load_keys(args.kv_entries, step + 1, next);
      tile.multiply(step, held);
    }
    __syncthreads();
    for (uint32_t g = 0; g < heads; ++g) {
      const float logit = candidate ? tile.logits[g][threadIdx.x] * args.scale : -INFINITY;
      if (row < args.rows) to.logits[(of_query + g) * args.rows + row] = logit;
      const float2 sum = merged_over_warp({logit, candidate ? 1.0f : 0.0f});
      if (threadIdx.x % 32 == 0) tile.of_warp[g][warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x < heads) {
      float2 sum = tile.of_warp[threadIdx.x][0];
      for (uint32_t w = 1; w < kWarps; ++w) sum = merged(sum, tile.of_warp[threadIdx.x][w]);
      to.parts[(of_query + threadIdx.x) * to.tiles + blockIdx.x] = sum;
    }
    __syncthreads();
  }
}

// One warp per query head of a layer.
__global__ void __launch_bounds__(kThreads)
    totals_kernel(const __grid_constant__ Workspace work, uint32_t count) {
  const uint32_t of_query = blockIdx.x * kWarps + threadIdx.x / 32;
  if (of_query >= count) return;
  float2 sum{-INFINITY, 0};
  for (uint32_t tile = threadIdx.x % 32; tile < work.tiles; tile += 32)
    sum = merged(sum, work.parts[size_t{of_query} * work.tiles + tile]);
  sum = merged_over_warp(sum);
  const bool hidden = sum.x == -INFINITY && sum.y == 0;  // no candidates
  if (threadIdx.x % 32 == 0) work.totals[of_query] = {hidden ? 0 : sum.x, hidden ? 0 : 1 / sum.y};
}

// One layer's score of a row: the mean of its query heads' probabilities.
__global__ void __launch_bounds__(kThreads)
    layer_kernel(const __grid_constant__ IntentScoreArgs args, const __grid_constant__ Workspace work,
                 uint32_t first_layer, float split) {
  const uint32_t row = blockIdx.x * kTile + threadIdx.x;
  if (row >= args.rows) return;
  const float* const logits = work.logits + size_t{blockIdx.y} * args.query_heads * args.rows + row;
  const float2* const totals = work.totals + size_t{blockIdx.y} * args.query_heads;
  float sum = 0;
#pragma unroll 8
  for (uint32_t j = 0; j < args.query_heads; ++j) {
    const float2 total = totals[j];
    sum += expf(logits[size_t{j} * args.rows] - total.x) * total.y;
  }
  work.of_layer[size_t{first_layer + blockIdx.y} * args.rows + row] = sum * split;
}

__global__ void __launch_bounds__(kThreads)
    scores_kernel(const float* of_layer, uint32_t layers, uint32_t rows, float factor, bool best,
                  float* scores, uint64_t stride, uint32_t copies) {
  const uint32_t row = blockIdx.x * kThreads + threadIdx.x;
  if (row >= rows) return;
  float sum = 0;
#pragma unroll 8
  for (uint32_t l = 0; l < layers; ++l) sum += of_layer[size_t{l} * rows + row];
  sum *= factor;
  const uint32_t end = min(copies, (blockIdx.y + 1) * kCopies);
  for (uint32_t c = blockIdx.y * kCopies; c < end; ++c) {
    float* const to = scores + c * stride + row;
    if (!best || sum > *to || isnan(sum)) *to = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    means_kernel(const __nv_bfloat16* q, uint64_t layer_stride, uint32_t rows, uint32_t width, float* out) {
  const uint32_t c = blockIdx.x * kThreads + threadIdx.x;
  if (c >= width) return;
  const __nv_bfloat16* const from = q + blockIdx.y * layer_stride + c;
  double sum = 0;  // double, as in the definition
#pragma unroll 8
  for (uint32_t row = 0; row < rows; ++row) sum += double{__bfloat162float(from[size_t{row} * width])};
  out[size_t{blockIdx.y} * width + c] = static_cast<float>(sum / max(rows, 1u));
}

template <int kDim>
void launch_logits(const IntentScoreArgs& args, const Workspace& to, uint32_t first, dim3 grid,
                   cudaStream_t stream) {
  const uint32_t group = args.query_heads / args.kv_heads;
  const auto kernel = group == 1   ? logits_kernel<kDim, 1>
                      : group == 2 ? logits_kernel<kDim, 2>
                      : group <= 4 ? logits_kernel<kDim, 4>
                                   : logits_kernel<kDim, 8>;
  kernel<<<grid, kThreads, 0, stream>>>(args, to, first);
}

bool right(const IntentScoreArgs& args) {
  return args.kv_entries.page_tokens > 0 && args.layers > 0 && args.kv_heads > 0 &&
         args.query_heads % args.kv_heads == 0 && args.query_heads > 0 &&
         (args.kv_entries.head_dim == 64 || args.kv_entries.head_dim == 128);
}

}  // namespace

size_t intent_floats(const IntentScoreArgs& args) { return Workspace::floats(args); }

cudaError_t intent_layers(const IntentScoreArgs& args, uint32_t first, uint32_t count, cudaStream_t stream) {
  if (!right(args) || first + count > args.layers) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const Workspace work(args);
  const float split = static_cast<float>(1.0 / (double{1} * args.layers * args.query_heads));
  for (uint32_t done = 0; done < count; done += work.layers) {
    const uint32_t from = first + done, layers = std::min(work.layers, count - done);
    const dim3 grid(work.tiles, layers * args.kv_heads);
    args.kv_entries.head_dim == 64 ? launch_logits<64>(args, work, from, grid, stream)
                                   : launch_logits<128>(args, work, from, grid, stream);
    const uint32_t queries = layers * args.query_heads;
    totals_kernel<<<(queries + kWarps - 1) / kWarps, kThreads, 0, stream>>>(work, queries);
    layer_kernel<<<dim3(work.tiles, layers), kThreads, 0, stream>>>(args, work, from, split);
  }
  return cudaGetLastError();
}

cudaError_t intent_scores(const IntentScoreArgs& args, float factor, bool best, float* scores,
                          uint64_t stride, uint32_t copies, cudaStream_t stream) {
  if (!right(args)) return cudaErrorInvalidValue;
  if (args.rows == 0 || copies == 0) return cudaSuccess;
  const Workspace work(args);
  scores_kernel<<<dim3(work.tiles, (copies + kCopies - 1) / kCopies), kThreads, 0, stream>>>(
      work.of_layer, args.layers, args.rows, factor, best, scores, stride, copies);
  return cudaGetLastError();
}

cudaError_t intent_means(const __nv_bfloat16* q, uint64_t layer_stride, uint32_t layers, uint32_t rows,
                         uint32_t width, float* out, cudaStream_t stream) {
  if (layers == 0 || width == 0) return cudaSuccess;
  means_kernel<<<dim3((width + kThreads - 1) / kThreads, layers), kThreads, 0, stream>>>(q, layer_stride,
                                                                                         rows, width, out);
  return cudaGetLastError();
}

}  // namespace kvtwin
