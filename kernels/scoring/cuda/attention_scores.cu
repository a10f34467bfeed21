#include <algorithm>

#include "kernels/scoring/cuda/attention_scores_tile.cuh"

namespace kvtwin {
namespace {

using namespace device;

using Logits = float[kAttentionScoreBlocks][4];

// Partial softmax of a warp's 32 keys, for the two query rows of a lane.
__device__ void part_of(const Logits& s, float2 (&part)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (uint32_t b = 0; b < kAttentionScoreBlocks; ++b)
      most = fmaxf(most, fmaxf(s[b][2 * r], s[b][2 * r + 1]));
    for (uint32_t by = 1; by <= 2; by *= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, by));
    const float from = most == -INFINITY ? 0 : most;
#pragma unroll
    for (uint32_t b = 0; b < kAttentionScoreBlocks; ++b)
      sum += exp2_fast(s[b][2 * r] - from) + exp2_fast(s[b][2 * r + 1] - from);
    for (uint32_t by = 1; by <= 2; by *= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
    part[r] = {most, sum};
  }
}

template <int kDim, bool kJoin>
__global__ void __launch_bounds__(kAttentionScoreThreads)
    denominators_kernel(const __grid_constant__ AttentionScoreArgs args) {
  extern __shared__ char memory[];
  auto* const shared = reinterpret_cast<typename AttentionScorer<kDim, kJoin>::Shared*>(memory);
  AttentionScorer<kDim, kJoin> attention_scorer(args, shared);
  if (attention_scorer.first >= attention_scorer.head.kv_entries.rows || attention_scorer.tiles == 0) return;
  attention_scorer.load_keys();
  const ManyWorkspace workspace(args);
  float2* const out = workspace.parts(args) + workspace.part(blockIdx.y, blockIdx.x);
  const uint32_t lane = attention_scorer.lane;
  attention_scorer.for_rows(
      [&](uint32_t t, const Logits& s) {
        float2 part[2];
        part_of(s, part);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (lane % 4 == 0) shared->parts[t % 2][attention_scorer.warp][lane / 4 + 8 * r] = part[r];
        }
      },
      [&](uint32_t t) {  // merges the previous tile's partials into one of the CTA
        if (t == 0 || threadIdx.x >= kAttentionScoreTileRows) return;
        const uint32_t last = t - 1, g = attention_scorer.head_of(last);
        if (kJoin && g + 1 < args.group) return;
        float2 all = shared->parts[last % 2][0][threadIdx.x];
        for (uint32_t w = 1; w < kAttentionScoreWarps; ++w)
          all = joined(all, shared->parts[last % 2][w][threadIdx.x]);
        out[size_t{kJoin ? 0 : g} * workspace.queries + attention_scorer.row_of(last) + threadIdx.x] = all;
      });
}

// By query row: the logarithm of the sum over all key tiles; infinity if no key is visible. Sixteen threads
// per row.
constexpr uint32_t kTotalRows = 32, kTotalParts = 16;
__global__ void __launch_bounds__(kTotalRows* kTotalParts)
    totals_kernel(const __grid_constant__ AttentionScoreArgs args) {
  __shared__ float2 parts[kTotalParts][kTotalRows];
  const ManyWorkspace workspace(args);
  const uint32_t row = blockIdx.x * kTotalRows + threadIdx.x;
  const AttentionScoreHead& head = args.heads[blockIdx.y];
  const uint32_t tiles = tiles_of(head.kv_entries.rows, kAttentionScoreTileKeys);
  const bool real =
      row < workspace.rows() &&
      row % workspace.queries < tiles_of(head.queries, kAttentionScoreTileRows) * kAttentionScoreTileRows;
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

// Sums an output row over this thread's query rows, then over the lanes with the same keys.
__device__ void store_sums(const AttentionScoreArgs& args, uint32_t rows, uint32_t first, uint32_t of_group,
                           float (&sum)[kAttentionScoreBlocks][2]) {
  const uint32_t lane = threadIdx.x % 32;
  float* const out = gridDim.z == 1 ? args.sums + (size_t{blockIdx.y} * args.lanes() + of_group) * args.stride
                                    : ManyWorkspace(args).shared_sums(args, blockIdx.z, blockIdx.y, of_group);
#pragma unroll
  for (uint32_t b = 0; b < kAttentionScoreBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (uint32_t by = 4; by < 32; by *= 2) {
        const float other = __shfl_xor_sync(kAllLanes, sum[b][i], by);
        sum[b][i] = args.largest ? fmaxf(sum[b][i], other) : sum[b][i] + other;
      }
      const uint32_t key = first + b * 8 + lane * 2 + i;
      if (lane < 4 && key < rows) out[key] = sum[b][i];
      sum[b][i] = 0;
    }
  }
}

template <int kDim, bool kJoin>
__global__ void __launch_bounds__(kAttentionScoreThreads)
    probabilities_kernel(const __grid_constant__ AttentionScoreArgs args) {
  extern __shared__ char memory[];
  auto* const shared = reinterpret_cast<typename AttentionScorer<kDim, kJoin>::Shared*>(memory);
  AttentionScorer<kDim, kJoin> attention_scorer(args, shared);
  const AttentionScoreHead& head = attention_scorer.head;
  // A head without query rows has sums of zero, which the first CTA writes.
  if (attention_scorer.first >= head.kv_entries.rows || (attention_scorer.tiles == 0 && blockIdx.z > 0))
    return;
  const ManyWorkspace workspace(args);
  const float* const totals = workspace.totals(args) + blockIdx.y * workspace.rows();
  const uint32_t key = attention_scorer.first + attention_scorer.warp * kAttentionScoreWarpKeys;
  float sum[kAttentionScoreBlocks][2] = {};
  if (attention_scorer.tiles == 0) {
    for (uint32_t g = 0; g < args.lanes(); ++g) store_sums(args, head.kv_entries.rows, key, g, sum);
    return;
  }
  attention_scorer.load_keys();
  attention_scorer.for_rows(
      [&](uint32_t t, const Logits& s) {
        const uint32_t of_group = kJoin ? 0 : attention_scorer.head_of(t), row = attention_scorer.row_of(t);
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
          const uint32_t mine = row + attention_scorer.lane / 4 + 8 * r;
          const float total = __ldg(totals + size_t{of_group} * workspace.queries + mine);
          const float weight = args.weigh_visible ? static_cast<float>(attention_scorer.visible(mine)) : 1.0f;
#pragma unroll
          for (uint32_t b = 0; b < kAttentionScoreBlocks; ++b) {
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
              const float p = weight * exp2_fast(s[b][2 * r + i] - total);
              sum[b][i] = args.largest ? fmaxf(sum[b][i], p) : sum[b][i] + p;
            }
          }
        }
        if (row + kAttentionScoreTileRows >=
            (attention_scorer.first_tile + attention_scorer.tiles) * kAttentionScoreTileRows)
          store_sums(args, head.kv_entries.rows, key, of_group, sum);
      },
      [](uint32_t) {});
}

// Adds an output row's sums of all splits in order. One thread per key.
constexpr uint32_t kJoinThreads = 256;
__global__ void __launch_bounds__(kJoinThreads)
    splits_kernel(const __grid_constant__ AttentionScoreArgs args) {
  const ManyWorkspace workspace(args);
  const uint32_t head = blockIdx.y / workspace.lanes, g = blockIdx.y % workspace.lanes;
  const uint32_t key = blockIdx.x * kJoinThreads + threadIdx.x;
  if (key >= args.heads[head].kv_entries.rows) return;
  const uint32_t tiles = tiles_of(args.heads[head].queries, kAttentionScoreTileRows);
  const uint32_t split_list = tiles == 0 ? 1 : tiles_of(tiles, tiles_of(tiles, workspace.splits));
  float sum = workspace.shared_sums(args, 0, head, g)[key];
  for (uint32_t split = 1; split < split_list; ++split) {
    const float other = workspace.shared_sums(args, split, head, g)[key];
    sum = args.largest ? fmaxf(sum, other) : sum + other;
  }
  args.sums[size_t{blockIdx.y} * args.stride + key] = sum;
}

template <int kDim, bool kJoin>
cudaError_t launch(const AttentionScoreArgs& args, cudaStream_t stream) {
  constexpr int kBytes = sizeof(typename AttentionScorer<kDim, kJoin>::Shared);
  const ManyWorkspace workspace(args);
  const dim3 grid(workspace.key_tiles, args.count, workspace.splits);
  for (const auto kernel : {denominators_kernel<kDim, kJoin>, probabilities_kernel<kDim, kJoin>}) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
  }
  if (args.queries_max > 0) {
    denominators_kernel<kDim, kJoin><<<grid, kAttentionScoreThreads, kBytes, stream>>>(args);
    const auto rows = static_cast<uint32_t>(workspace.rows());
    totals_kernel<<<dim3(tiles_of(rows, kTotalRows), args.count), dim3(kTotalRows, kTotalParts), 0, stream>>>(
        args);
  }
  probabilities_kernel<kDim, kJoin><<<grid, kAttentionScoreThreads, kBytes, stream>>>(args);
  if (workspace.splits > 1) {
    splits_kernel<<<dim3(tiles_of(args.rows_max, kJoinThreads), args.count * workspace.lanes), kJoinThreads,
                    0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace

size_t attention_score_workspace_bytes(const AttentionScoreArgs& args) {
  // join_logits may not be set yet.
  const size_t few = has_few_columns(args) ? FewWorkspace(args).bytes(args) : 0;
  return std::max(ManyWorkspace(args).bytes(args), few);
}

cudaError_t compute_attention_scores(const AttentionScoreArgs& args, cudaStream_t stream) {
  const uint32_t page = args.kv_entries.page_tokens;
  if (args.group == 0 || args.q_stride % 8 != 0 || page == 0 || (page > 1 && page % 8 != 0))
    return cudaErrorInvalidValue;
  if (args.kv_entries.head_dim != 64 && args.kv_entries.head_dim != 128) return cudaErrorInvalidValue;
  if (args.rows_max == 0 || args.count == 0) return cudaSuccess;
  if (has_few_columns(args) && !args.join_logits) return attention_scores_with_few(args, stream);
  if (args.join_logits)
    return args.kv_entries.head_dim == 64 ? launch<64, true>(args, stream) : launch<128, true>(args, stream);
  return args.kv_entries.head_dim == 64 ? launch<64, false>(args, stream) : launch<128, false>(args, stream);
}

}  // namespace kvtwin
