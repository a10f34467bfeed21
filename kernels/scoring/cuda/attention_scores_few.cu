// Attention scores for few query rows: keys are read once, logits are stored (attention_score_logits.cu) and
// converted to sums of probabilities here.
//
// Bound: 2 * head_dim bytes and 16 bytes per column for each KV entry (a logit written and read, a sum
// written and read when it becomes a score), at 4.69 TB/s.

#include "kernels/common/kv_entry_heads.cuh"
#include "kernels/scoring/cuda/attention_scores_parts.cuh"

namespace kvtwin::device {
namespace {

// A column's weight, and the base-2 logarithm of its softmax denominator.
struct Column {
  float weight, total;
};

// One warp per column. Without a visible key the total is infinity, which makes all probabilities 0.
__device__ Column column_of(const AttentionScoreArgs& args, const AttentionScoreHead& head,
                            const FewWorkspace& workspace, uint32_t column) {
  const uint32_t lane = threadIdx.x % 32, i = column % args.queries_max;
  if (column >= workspace.columns || i >= head.queries) return {0, INFINITY};
  const float2* const parts = workspace.parts_of(args, blockIdx.y) + column;
  const uint32_t tiles = tiles_of(head.kv_entries.rows, kFewKeys);
  float2 all = {-INFINITY, 0};
  for (uint32_t t = lane; t < tiles; t += 32) all = joined(all, parts[t * kFewColumns]);
#pragma unroll
  for (uint32_t by = 1; by < 32; by *= 2) {
    const float2 other = {__shfl_xor_sync(kAllLanes, all.x, by), __shfl_xor_sync(kAllLanes, all.y, by)};
    all = (lane & by) == 0 ? joined(all, other) : joined(other, all);
  }
  const float weight = args.weigh_visible ? static_cast<float>(__ldg(args.visible + head.visible + i)) : 1.0f;
  return {weight, all.y > 0 ? all.x + log2f(all.y) : INFINITY};
}

// Four rows per thread: for each query head the sum (or the largest) of its columns' probabilities. Logits
// load while the totals of the columns are computed.
constexpr uint32_t kSumThreads = kFewColumns * 32;
template <uint32_t kColumns>
__global__ void __launch_bounds__(kSumThreads)
    few_sums_kernel(const __grid_constant__ AttentionScoreArgs args) {
  __shared__ Column columns[kFewColumns];
  const AttentionScoreHead head = args.heads[blockIdx.y];
  const uint32_t row = (blockIdx.x * kSumThreads + threadIdx.x) * 4, rows = head.kv_entries.rows;
  if (blockIdx.x * kSumThreads * 4 >= rows) return;
  const FewWorkspace workspace(args);
  float4 logits[kColumns];
#pragma unroll
  for (uint32_t c = 0; c < kColumns; ++c) {
    if (c < workspace.columns && row < rows)
      logits[c] = __ldcs(reinterpret_cast<const float4*>(workspace.logits_of(args, blockIdx.y, c) + row));
  }
  const Column mine = column_of(args, head, workspace, threadIdx.x / 32);
  if (threadIdx.x % 32 == 0) columns[threadIdx.x / 32] = mine;
  __syncthreads();
  if (row >= rows) return;
  const bool whole =
      args.stride % 4 == 0 && reinterpret_cast<uint64_t>(args.sums) % 16 == 0 && row + 4 <= rows;
  float* out = args.sums + size_t{blockIdx.y} * args.group * args.stride + row;
  float sum[4] = {};
  uint32_t left = args.queries_max;  // columns left of this query head
#pragma unroll
  for (uint32_t c = 0; c < kColumns; ++c) {
    if (c >= workspace.columns) break;
    const Column of = columns[c];
    const float x[4] = {logits[c].x, logits[c].y, logits[c].z, logits[c].w};
    // A head with fewer query rows has columns whose logits were not written.
    const bool real = args.queries_max - left < head.queries;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float p = real ? of.weight * exp2f(x[k] - of.total) : 0;
      sum[k] = args.largest ? fmaxf(sum[k], p) : sum[k] + p;
    }
    if (--left > 0) continue;
    left = args.queries_max;
    if (whole) {
      *reinterpret_cast<float4*>(out) = {sum[0], sum[1], sum[2], sum[3]};
    } else {
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        if (row + k < rows) out[k] = sum[k];
      }
    }
    out += args.stride;
#pragma unroll
    for (int k = 0; k < 4; ++k) sum[k] = 0;
  }
}

}  // namespace

cudaError_t attention_scores_with_few(const AttentionScoreArgs& args, cudaStream_t stream) {
  const cudaError_t error = few_logits(args, stream);
  if (error != cudaSuccess) return error;
  const dim3 rows(tiles_of(args.rows_max, kSumThreads * 4), args.count);
  if (args.group * args.queries_max <= 4) {
    few_sums_kernel<4><<<rows, kSumThreads, 0, stream>>>(args);
  } else {
    few_sums_kernel<8><<<rows, kSumThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace kvtwin::device
