#include "kernels/cache_ops/qkv_append.h"
#include "kernels/common/kv_block.cuh"

namespace kvtwin {
namespace {

constexpr uint32_t kThreads = 256, kDimMax = 256;
constexpr uint32_t kPairs = kDimMax / 2 / 32;  // pairs of a head per lane

// One head of one warp: pair i of lane l is channels (32 i + l, half + 32 i + l).
struct Head {
  float low[kPairs], high[kPairs];

  __device__ void load(const __nv_bfloat16* from, uint32_t half, uint32_t lane) {
#pragma unroll
    for (uint32_t i = 0; i < kPairs; ++i) {
      const uint32_t at = 32 * i + lane;
      low[i] = at < half ? __bfloat162float(from[at]) : 0;
      high[i] = at < half ? __bfloat162float(from[half + at]) : 0;
    }
  }
  __device__ void norm(const __nv_bfloat16* weight, float eps, uint32_t half, uint32_t lane) {
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < kPairs; ++i) sum += low[i] * low[i] + high[i] * high[i];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    const float scale = 1 / sqrtf(sum / static_cast<float>(2 * half) + eps);
#pragma unroll
    for (uint32_t i = 0; i < kPairs; ++i) {
      const uint32_t at = 32 * i + lane;
      if (at >= half) break;
      low[i] *= scale * __bfloat162float(weight[at]);
      high[i] *= scale * __bfloat162float(weight[half + at]);
    }
  }
  __device__ void rotate(const float2* turns, uint32_t half, uint32_t lane) {
#pragma unroll
    for (uint32_t i = 0; i < kPairs; ++i) {
      const uint32_t at = 32 * i + lane;
      if (at >= half) continue;
      const float2 turn = turns[at];
      const float a = low[i], b = high[i];
      low[i] = a * turn.x - b * turn.y;
      high[i] = b * turn.x + a * turn.y;
    }
  }
};

__global__ void __launch_bounds__(kThreads) qkv_append_kernel(const __grid_constant__ RopeAppendArgs args) {
  __shared__ float2 turns[kDimMax / 2];  // cosine and sine of each pair
  const uint32_t row = blockIdx.x, lane = threadIdx.x % 32, half = args.head_dim / 2;
  const AppendSlot slot = args.slots[row];
  for (uint32_t i = threadIdx.x; i < half; i += kThreads) {
    float sine, cosine;
    sincosf(static_cast<float>(args.positions[row]) * args.inv_freq[i], &sine, &cosine);
    turns[i] = {args.rope_scale * cosine, args.rope_scale * sine};
  }
  __syncthreads();
  const KvBlockShape block{args.page_tokens, args.head_dim};
  const uint32_t kv_heads = args.kv_heads, heads = args.query_heads + 2 * kv_heads;
  // One head per warp: few rows are bound by latency, which the heads of a CTA share.
  if (const uint32_t h = blockIdx.y * (kThreads / 32) + threadIdx.x / 32; h < heads) {
    Head head;
    head.load(args.qkv + (size_t{row} * heads + h) * args.head_dim, half, lane);
    const bool query = h < args.query_heads, key = !query && h < args.query_heads + kv_heads;
    if (query && args.q_norm != nullptr) head.norm(args.q_norm, args.eps, half, lane);
    if (key && args.k_norm != nullptr) head.norm(args.k_norm, args.eps, half, lane);
    if (query || key) head.rotate(turns, half, lane);
    const uint32_t kv_head = (h - args.query_heads) % kv_heads;  // of keys and values
    __nv_bfloat16* const to = query ? args.q + size_t{row} * args.q_stride + size_t{h} * args.head_dim
                                    : args.pool + (size_t{slot.block} + kv_head) * block.numbers() +
                                          (key ? 0 : size_t{args.page_tokens} * args.head_dim);
#pragma unroll
    for (uint32_t i = 0; i < kPairs; ++i) {
      const uint32_t at = 32 * i + lane;
      if (at >= half) break;
      to[query ? at : block.at(slot.slot, at)] = __float2bfloat16_rn(head.low[i]);
      to[query ? half + at : block.at(slot.slot, half + at)] = __float2bfloat16_rn(head.high[i]);
    }
  }
}

}  // namespace

cudaError_t qkv_append(const RopeAppendArgs& args, cudaStream_t stream) {
  if (args.head_dim == 0 || args.head_dim % 8 != 0 || args.head_dim > kDimMax || args.page_tokens == 0 ||
      (args.head_dim > 64 && args.head_dim % 64 != 0) || args.slots_per_row != 1 || args.k != nullptr) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const uint32_t heads = args.query_heads + 2 * args.kv_heads, each = kThreads / 32;
  qkv_append_kernel<<<dim3(args.rows, (heads + each - 1) / each), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
