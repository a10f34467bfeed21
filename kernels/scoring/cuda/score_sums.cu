// Scores and scorer state from the sums of compute_attention_scores.

#include <algorithm>
#include <cmath>

#include "kernels/common/kv_entry_heads.cuh"
#include "kernels/scoring/cuda/attention_scores_parts.cuh"

namespace kvtwin {
namespace {

using namespace device;

// One row per thread.
constexpr uint32_t kRowThreads = 256;

__device__ const float* sums_of(const AttentionScoreArgs& args, uint32_t head, uint32_t of_group) {
  return args.sums + (size_t{head} * args.lanes() + of_group) * args.stride;
}
__device__ float lanes_mean(const AttentionScoreArgs& args, uint32_t head, uint32_t row) {
  float sum = 0;
  for (uint32_t g = 0; g < args.lanes(); ++g) sum += sums_of(args, head, g)[row];
  return sum / static_cast<float>(args.lanes());
}

// Rows staged in shared memory for pooling: a CTA's rows and `reach` neighbours on each side, of several
// query heads at a time, so that all loads are in flight together.
constexpr uint32_t kAnyReach = UINT32_MAX;
struct Staging {
  uint32_t first, end, reach, stride;

  __device__ Staging(const WindowScoreArgs& args, const AttentionScoreHead& head, uint32_t begin)
      : reach(args.pool == AttentionScorePool::kNone ? 0 : args.kernel / 2),
        stride(kRowThreads + args.kernel) {
    first = begin > reach ? begin - reach : 0;
    end = min(begin + kRowThreads + reach, head.scored);
  }
  // The result for rows beyond `scored` is undefined. kReach: `reach`, or kAnyReach.
  template <uint32_t kReach>
  __device__ __forceinline__ float pooled(const WindowScoreArgs& args, const float* staged,
                                          uint32_t row) const {
    if (args.pool == AttentionScorePool::kNone) return row < end ? staged[row - first] : 0;
    const bool largest = args.pool == AttentionScorePool::kMax;
    float value = largest ? -INFINITY : 0;
    const uint32_t from = row > reach ? row - reach : 0, to = min(row + reach + 1, end);
    if (kReach != kAnyReach && to - from == 2 * kReach + 1) {
      const float* const mine = staged + from - first;
#pragma unroll
      for (uint32_t i = 0; i < 2 * kReach + 1; ++i) value = largest ? fmaxf(value, mine[i]) : value + mine[i];
    } else {
      for (uint32_t p = from; p < to; ++p)
        value = largest ? fmaxf(value, staged[p - first]) : value + staged[p - first];
    }
    return largest ? value : value * (1 / static_cast<float>(args.kernel));
  }
};
struct LaneReduction {
  const AttentionScoreReduce how;
  float joined = 0;

  __device__ void take(uint32_t g, float next) {
    joined = g == 0 ? next : how == AttentionScoreReduce::kMax ? fmaxf(joined, next) : joined + next;
  }
  __device__ float result(uint32_t lanes) const {
    return how == AttentionScoreReduce::kMean ? joined / static_cast<float>(lanes) : joined;
  }
};

template <uint32_t kReach>
__global__ void __launch_bounds__(kRowThreads)
    window_kernel(const __grid_constant__ WindowScoreArgs args, uint32_t lanes_at_once) {
  extern __shared__ float staged[];
  const AttentionScoreArgs& attention_scores = args.attention_scores;
  const AttentionScoreHead& head = attention_scores.heads[blockIdx.y];
  const uint32_t begin = blockIdx.x * kRowThreads, row = begin + threadIdx.x,
                 lanes = attention_scores.lanes();
  if (begin >= head.kv_entries.rows) return;
  const Staging staging(args, head, begin);
  const float each = attention_scores.largest ? 1.0f : 1 / static_cast<float>(max(head.queries, 1u));
  LaneReduction reduction{args.reduce};
  float score;
  if (args.pool_first) {
    for (uint32_t from = 0; from < lanes; from += lanes_at_once) {
      const uint32_t count = min(lanes_at_once, lanes - from);
      __syncthreads();
      for (uint32_t p = staging.first + threadIdx.x; p < staging.end; p += kRowThreads) {
#pragma unroll 4
        for (uint32_t g = 0; g < count; ++g)
          staged[g * staging.stride + p - staging.first] =
              __ldg(sums_of(attention_scores, blockIdx.y, from + g) + p) * each;
      }
      __syncthreads();
      for (uint32_t g = 0; g < count; ++g)
        reduction.take(from + g, staging.pooled<kReach>(args, staged + g * staging.stride, row));
    }
    score = reduction.result(lanes);
  } else {
    for (uint32_t p = staging.first + threadIdx.x; p < staging.end; p += kRowThreads) {
      LaneReduction at{args.reduce};
#pragma unroll 4
      for (uint32_t g = 0; g < lanes; ++g)
        at.take(g, __ldg(sums_of(attention_scores, blockIdx.y, g) + p) * each);
      staged[p - staging.first] = at.result(lanes);
    }
    __syncthreads();
    score = staging.pooled<kReach>(args, staged, row);
  }
  if (row >= head.kv_entries.rows || (args.probes && (row < args.skip || row >= head.scored))) return;
  args.scores[blockIdx.y * args.stride + row - args.skip] = row >= head.scored ? INFINITY : score;
}

__global__ void __launch_bounds__(kRowThreads) layer_kernel(const __grid_constant__ LayerScoreArgs args) {
  const uint32_t first = blockIdx.y * args.kv_heads;
  const AttentionScoreHead& head = args.attention_scores.heads[first];
  const uint32_t row = blockIdx.x * kRowThreads + threadIdx.x;
  if (row >= head.kv_entries.rows) return;
  float sum = 0;
  for (uint32_t h = 0; h < args.kv_heads; ++h) sum += lanes_mean(args.attention_scores, first + h, row);
  const float score = row >= head.scored ? INFINITY : sum / static_cast<float>(args.kv_heads);
  for (uint32_t h = 0; h < args.kv_heads; ++h) args.scores[(first + h) * args.stride + row] = score;
}

template <bool kStamp>
__global__ void __launch_bounds__(kRowThreads) state_kernel(const __grid_constant__ StateUpdateArgs args) {
  const AttentionScoreArgs& attention_scores = args.attention_scores;
  const KvEntryHead& kv_entries = attention_scores.heads[blockIdx.y].kv_entries;
  const uint32_t row = blockIdx.x * kRowThreads + threadIdx.x;
  if (row >= kv_entries.rows) return;
  float& state_value = args.scorer_state[state_index_of(
      attention_scores.kv_entries, place_of(attention_scores.kv_entries, kv_entries, row))];
  const float mean = lanes_mean(attention_scores, blockIdx.y, row);
  if constexpr (kStamp) {
    if (mean > args.alpha) state_value = args.now;
  } else {
    state_value += mean;
  }
}

// kDim / 8 lanes share a row and process kPointedEach rows.
constexpr uint32_t kPointedEach = 8;

template <int kDim>
__global__ void __launch_bounds__(kRowThreads)
    pointed_kernel(const __grid_constant__ AttentionScoreArgs args, float* scores, uint64_t stride) {
  constexpr uint32_t kLanes = kDim / 8, kRows = kRowThreads / kLanes;
  const AttentionScoreHead& head = args.heads[blockIdx.y];
  const uint32_t chunk = threadIdx.x % kLanes, query = head.q_row + head.queries - 1;
  const uint32_t first = blockIdx.x * kPointedEach * kRows + threadIdx.x / kLanes;
  // First all addresses, then all keys: two dependent loads in all.
  KvEntryPlace places[kPointedEach];
  uint4 keys[kPointedEach];
#pragma unroll
  for (uint32_t k = 0; k < kPointedEach; ++k)
    places[k] = place_of(args.kv_entries, head.kv_entries, min(first + k * kRows, head.kv_entries.rows - 1));
#pragma unroll
  for (uint32_t k = 0; k < kPointedEach; ++k) keys[k] = *key_chunk<kDim>(args.kv_entries, places[k], chunk);
  float mean[8] = {};
  for (uint32_t g = 0; g < args.group; ++g) {
    const __nv_bfloat16* const q =
        args.q + size_t{query} * args.q_stride + size_t{head.q_head + g} * kDim + 8 * chunk;
    float x[8];
    widen(__ldg(reinterpret_cast<const uint4*>(q)), x);
#pragma unroll
    for (int c = 0; c < 8; ++c) mean[c] += x[c] / static_cast<float>(args.group);
  }
#pragma unroll
  for (uint32_t k = 0; k < kPointedEach; ++k) {
    const uint32_t row = first + k * kRows;
    float x[8], product = 0;
    widen(keys[k], x);
#pragma unroll
    for (int c = 0; c < 8; ++c) product += x[c] * mean[c];
#pragma unroll
    for (uint32_t by = kLanes / 2; by > 0; by /= 2) product += __shfl_xor_sync(kAllLanes, product, by);
    if (chunk == 0 && row < head.kv_entries.rows) scores[blockIdx.y * stride + row] = product;
  }
}

dim3 row_grid(const AttentionScoreArgs& args, uint32_t heads) {
  return {tiles_of(args.rows_max, kRowThreads), heads};
}
bool nothing(const AttentionScoreArgs& args) { return args.rows_max == 0 || args.count == 0; }

}  // namespace

cudaError_t score_window_entries(const WindowScoreArgs& args, cudaStream_t stream) {
  if (args.kernel % 2 == 0) return cudaErrorInvalidValue;
  if (nothing(args.attention_scores)) return cudaSuccess;
  constexpr size_t kRoom = 48u << 10;
  const size_t lane = (kRowThreads + args.kernel) * sizeof(float);
  if (lane > kRoom) return cudaErrorInvalidValue;
  const auto lanes = static_cast<uint32_t>(
      args.pool_first ? std::min<size_t>(kRoom / lane, args.attention_scores.lanes()) : 1);
  const auto kernel = args.kernel == 5   ? window_kernel<2>
                      : args.kernel == 7 ? window_kernel<3>
                                         : window_kernel<kAnyReach>;
  kernel<<<row_grid(args.attention_scores, args.attention_scores.count), kRowThreads, lanes * lane, stream>>>(
      args, lanes);
  return cudaGetLastError();
}

cudaError_t score_layer_entries(const LayerScoreArgs& args, cudaStream_t stream) {
  if (args.kv_heads == 0 || args.attention_scores.count % args.kv_heads != 0) return cudaErrorInvalidValue;
  if (nothing(args.attention_scores)) return cudaSuccess;
  layer_kernel<<<row_grid(args.attention_scores, args.attention_scores.count / args.kv_heads), kRowThreads, 0,
                 stream>>>(args);
  return cudaGetLastError();
}

cudaError_t score_pointed_entries(const AttentionScoreArgs& attention_scores, float* scores, uint64_t stride,
                                  cudaStream_t stream) {
  const uint32_t dim = attention_scores.kv_entries.head_dim;
  if (dim != 64 && dim != 128) return cudaErrorInvalidValue;
  if (nothing(attention_scores)) return cudaSuccess;
  const dim3 grid(tiles_of(attention_scores.rows_max, kPointedEach * (kRowThreads / (dim / 8))),
                  attention_scores.count);
  (dim == 64 ? pointed_kernel<64> : pointed_kernel<128>)<<<grid, kRowThreads, 0, stream>>>(attention_scores,
                                                                                           scores, stride);
  return cudaGetLastError();
}

cudaError_t gather_state(const StateUpdateArgs& args, cudaStream_t stream) {
  if (nothing(args.attention_scores)) return cudaSuccess;
  state_kernel<false>
      <<<row_grid(args.attention_scores, args.attention_scores.count), kRowThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t stamp_entries(const StateUpdateArgs& args, cudaStream_t stream) {
  if (nothing(args.attention_scores)) return cudaSuccess;
  state_kernel<true>
      <<<row_grid(args.attention_scores, args.attention_scores.count), kRowThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
