#include <cmath>

#include "kernels/attention/attention_rows.h"
#include "kernels/common/kv_block.cuh"

namespace kvtwin {

cudaError_t attention_listed(const AttentionRowsArgs& args, cudaStream_t stream);  // in attention_listed.cu

namespace {

constexpr uint32_t kWarps = 4, kThreads = kWarps * 32, kAll = 0xffffffffu;

__device__ float largest_of_warp(float x) {
  for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, by));
  return x;
}
__device__ float sum_of_warp(float x) {
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(kAll, x, by);
  return x;
}

// Partial result of one warp. Lane l has channels 2 (32 i + l) and the next, i < kPairs.
template <int kHeads, int kPairs>
struct Partial {
  float max[kHeads], sum[kHeads];
  float2 out[kHeads][kPairs];
};

// Shared memory: q [kHeads][head_dim], then max, sum and out of each head per warp.
template <int kHeads, int kPairs>
struct Rows {
  const AttentionRowsArgs& args;
  const KvBlockShape block;
  const uint32_t warp, lane;
  float* const q;

  __device__ Rows(const AttentionRowsArgs& a, float* shared)
      : args(a),
        block{a.page_tokens, a.head_dim},
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        q(shared) {}

  __device__ const __nv_bfloat16* keys_of(uint32_t page, uint32_t column) const {
    return args.pool + (size_t{page} * args.heads_per_page + column) * block.numbers();
  }

  // Base-2 scores of this lane's KV entry.
  __device__ void score(const __nv_bfloat16* keys, uint32_t slot, uint32_t group, float (&s)[kHeads]) const {
    for (int g = 0; g < kHeads; ++g) s[g] = 0;
    for (uint32_t c = 0; c < args.head_dim; c += 8) {
      const uint4 raw = *reinterpret_cast<const uint4*>(keys + block.at(slot, c));
      const auto* const k = reinterpret_cast<const __nv_bfloat162*>(&raw);
      float x[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[2 * i] = __low2float(k[i]), x[2 * i + 1] = __high2float(k[i]);
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        if (g >= group) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) s[g] += x[i] * q[g * args.head_dim + c + i];
      }
    }
    const float scale = args.scale * 1.4426950408889634f;
#pragma unroll
    for (int g = 0; g < kHeads; ++g) s[g] *= scale;
  }

  // Adds 32 KV entries from `first` on, one per lane.
  __device__ void attend(const QueryRow& row, uint32_t column, uint32_t group, uint32_t first,
                         Partial<kHeads, kPairs>* part) const {
    const uint32_t read = first + lane, kv_entry = read < row.sinks ? read : read + row.gap;
    const bool valid = read < row.kv_entries;
    uint32_t page = 0, slot = kv_entry % args.page_tokens;
    if (valid) page = args.pages[row.table + (args.listed ? kv_entry : kv_entry / args.page_tokens)];
    if (args.listed) slot = page % args.page_tokens, page /= args.page_tokens;
    float s[kHeads];
    if (valid) score(keys_of(page, column), slot, group, s);
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      const float mine = valid ? s[g] : -INFINITY;
      const float max = fmaxf(part->max[g], largest_of_warp(mine));  // finite: the first KV entry is valid
      const float retained = exp2f(part->max[g] - max);
      s[g] = exp2f(mine - max);
      part->sum[g] = part->sum[g] * retained + sum_of_warp(s[g]);
      part->max[g] = max;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) part->out[g][i].x *= retained, part->out[g][i].y *= retained;
    }
    const uint32_t count = min(32u, row.kv_entries - first);
    for (uint32_t t = 0; t < count; ++t) {
      const __nv_bfloat16* const values =
          keys_of(__shfl_sync(kAll, page, t), column) + size_t{args.page_tokens} * args.head_dim;
      const uint32_t from = __shfl_sync(kAll, slot, t);
      float2 v[kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const uint32_t c = 2 * (32 * i + lane);
        v[i] = c < args.head_dim
                   ? __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(values + block.at(from, c)))
                   : float2{0, 0};
      }
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        const float p = __shfl_sync(kAll, s[g], t);
#pragma unroll
        for (int i = 0; i < kPairs; ++i) part->out[g][i].x += p * v[i].x, part->out[g][i].y += p * v[i].y;
      }
    }
  }

  // Merges the warps' partial results and writes the row.
  __device__ void finish(const QueryRow& row, uint32_t head, uint32_t group,
                         const Partial<kHeads, kPairs>& part) const {
    const uint32_t each = args.head_dim + 2;
    float* const found = q + kHeads * args.head_dim;  // [kWarps][kHeads][each]
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      float* const to = found + (warp * kHeads + g) * each;
      if (lane == 0) to[0] = part.max[g], to[1] = part.sum[g];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const uint32_t c = 2 * (32 * i + lane);
        if (c < args.head_dim) to[2 + c] = part.out[g][i].x, to[3 + c] = part.out[g][i].y;
      }
    }
    __syncthreads();
    __nv_bfloat16* const out =
        args.out + (size_t{row.row} * args.query_heads + size_t{head} * group) * args.head_dim;
    for (uint32_t i = threadIdx.x; i < group * args.head_dim; i += kThreads) {
      const uint32_t g = i / args.head_dim, c = i % args.head_dim;
      float max = -INFINITY, sum = 0, value = 0;
      for (uint32_t w = 0; w < kWarps; ++w) max = fmaxf(max, found[(w * kHeads + g) * each]);
      for (uint32_t w = 0; w < kWarps && max > -INFINITY; ++w) {
        const float* const one = found + (w * kHeads + g) * each;
        const float weight = exp2f(one[0] - max);
        sum += weight * one[1];
        value += weight * one[2 + c];
      }
      out[i] = __float2bfloat16_rn(sum > 0 ? value / sum : 0);
    }
    __syncthreads();
  }

  __device__ void run(uint32_t item) {
    const QueryRow row = args.list[args.by_head ? item : item / args.kv_heads];
    const uint32_t head = args.by_head ? row.head : item % args.kv_heads;
    const uint32_t column = args.by_head ? row.column : head, group = args.query_heads / args.kv_heads;
    const __nv_bfloat16* const from =
        args.q + (size_t{row.row} * args.query_heads + size_t{head} * group) * args.head_dim;
    for (uint32_t i = threadIdx.x; i < group * args.head_dim; i += kThreads) q[i] = __bfloat162float(from[i]);
    __syncthreads();
    Partial<kHeads, kPairs> part;
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      part.max[g] = -INFINITY, part.sum[g] = 0;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) part.out[g][i] = {0, 0};
    }
    for (uint32_t first = warp * 32; first < row.kv_entries; first += kThreads)
      attend(row, column, group, first, &part);
    finish(row, head, group, part);
  }
};

template <int kHeads, int kPairs>
__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ AttentionRowsArgs args) {
  extern __shared__ float shared[];
  Rows<kHeads, kPairs> rows(args, shared);
  const uint32_t items = args.by_head ? args.rows : args.rows * args.kv_heads;
  for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) rows.run(item);
}

template <int kHeads>
cudaError_t launch(const AttentionRowsArgs& args, cudaStream_t stream) {
  constexpr uint32_t kCtas = 132 * 8;
  const uint32_t items = args.by_head ? args.rows : args.rows * args.kv_heads,
                 ctas = items < kCtas ? items : kCtas;
  const size_t shared = kHeads * (args.head_dim + kWarps * (args.head_dim + 2)) * sizeof(float);
  const auto kernel = args.head_dim <= 64    ? rows_kernel<kHeads, 1>
                      : args.head_dim <= 128 ? rows_kernel<kHeads, 2>
                                             : rows_kernel<kHeads, 4>;
  kernel<<<ctas, kThreads, shared, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t attention_rows(const AttentionRowsArgs& given, cudaStream_t stream) {
  AttentionRowsArgs args = given;
  if (args.heads_per_page == 0) args.heads_per_page = args.kv_heads;
  if (args.kv_heads == 0 || args.query_heads % args.kv_heads != 0 || args.head_dim == 0 ||
      args.head_dim % 8 != 0 || args.head_dim > 256 || (args.head_dim > 64 && args.head_dim % 64 != 0) ||
      args.page_tokens == 0) {
    return cudaErrorInvalidValue;
  }
  const uint32_t group = args.query_heads / args.kv_heads;
  if (group > 8) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  if (args.runs && args.by_head && (args.head_dim == 64 || args.head_dim == 128))
    return attention_listed(args, stream);
  return group == 1   ? launch<1>(args, stream)
         : group <= 4 ? launch<4>(args, stream)
                      : launch<8>(args, stream);
}

}  // namespace kvtwin
