#include "kernels/common/cuda_primitives.cuh"
#include "kernels/scoring/cuda/kv_entry_gates.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kWidth = 16;  // FastKvzipGate::kWidth

// Sum over sixteen cooperating lanes; called by the whole warp.
__device__ float sum_of_lanes(float x) {
  for (uint32_t by = kWidth / 2; by > 0; by /= 2) x += __shfl_xor_sync(kAllLanes, x, by);
  return x;
}

// RMSNorm over sixteen lanes.
__device__ float normed(float x, float scale, float eps) {
  return x / sqrtf(sum_of_lanes(x * x) / kWidth + eps) * scale;
}

// Sixteen lanes process a token's KV head: lane c has element c of its vectors, and row c of k_base.
__global__ void __launch_bounds__(kThreads) fastkvzip_kernel(const __grid_constant__ FastKvzipArgs args) {
  const uint32_t lane = threadIdx.x % kWidth, outputs = args.outputs();
  const uint32_t mine = (blockIdx.x * kThreads + threadIdx.x) / kWidth, pairs = args.rows * args.heads;
  // Lanes beyond the last pair only take part in the shuffles of their warp.
  const uint32_t pair = min(mine, pairs - 1), row = pair / args.heads, head = pair % args.heads;
  const float* const products = args.products + size_t{row} * kGateParts * outputs;
  const auto product = [&](uint32_t vector) {
    float sum = 0;
#pragma unroll
    for (uint32_t p = 0; p < kGateParts; ++p) sum += products[p * outputs + vector * kWidth + lane];
    return sum;
  };
  float base[kWidth];
#pragma unroll
  for (uint32_t c = 0; c < kWidth; ++c)
    base[c] = __ldg(args.k_base + (size_t{head} * kWidth + lane) * kWidth + c);
  const float k = normed(product(args.heads * args.group + head), __ldg(args.k_norm + lane), args.norm_eps);
  const float q_norm = __ldg(args.q_norm + lane);
  float sum = 0;
  for (uint32_t g = 0; g < args.group; ++g) {
    const uint32_t j = head * args.group + g;
    const float q = normed(product(j) + __ldg(args.bq + j * kWidth + lane), q_norm, args.norm_eps);
    const float z = sum_of_lanes(k * q) / 4 + __ldg(args.bias + j);
    float other = 0;
#pragma unroll
    for (uint32_t c = 0; c < kWidth; ++c) other += base[c] * __shfl_sync(kAllLanes, q, c, kWidth);
    sum += 1 / (1 + sum_of_lanes(expf(other / 4 - z)));
  }
  if (lane == 0 && mine < pairs) args.out[pair] = sum / static_cast<float>(args.group);
}

__device__ float activated(uint8_t activation, float x) {
  if (activation == 0) return x / (1 + expf(-x));
  if (activation == 1) return fmaxf(x, 0);
  return 0.5f * x * (1 + erff(x * 0.70710678f));
}

// One CTA per token; its warps take the KV heads in turn.
__global__ void __launch_bounds__(kThreads) trimkv_kernel(const __grid_constant__ TrimKvArgs args) {
  extern __shared__ float inner[];
  const uint32_t row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* const products = args.products + size_t{row} * kGateParts * args.width;
  for (uint32_t c = threadIdx.x; c < args.width; c += kThreads) {
    float sum = args.b1[c];
#pragma unroll
    for (uint32_t p = 0; p < kGateParts; ++p) sum += products[p * args.width + c];
    inner[c] = activated(args.activation, sum);
  }
  __syncthreads();
  for (uint32_t h = warp; h < args.heads; h += kWarps) {
    float logit = 0;
    for (uint32_t c = lane; c < args.width; c += 32) logit += args.w2[size_t{h} * args.width + c] * inner[c];
    for (uint32_t by = 16; by > 0; by /= 2) logit += __shfl_xor_sync(kAllLanes, logit, by);
    logit += args.b2[h];
    if (lane == 0) args.out[size_t{row} * args.heads + h] = fminf(logit, 0) - log1pf(expf(-fabsf(logit)));
  }
}

}  // namespace

void split_gate_weights(const float* weights, size_t count, __nv_bfloat16* parts) {
  for (size_t i = 0; i < count; ++i) {
    float left = weights[i];
    for (uint32_t p = 0; p < kGateParts; ++p) {
      const __nv_bfloat16 part = __float2bfloat16(left);
      parts[p * count + i] = part;
      left -= __bfloat162float(part);
    }
  }
}

cudaError_t fastkvzip_gates(const FastKvzipArgs& args, cudaStream_t stream) {
  const uint64_t threads = uint64_t{args.rows} * args.heads * kWidth;
  if (threads == 0) return cudaSuccess;
  fastkvzip_kernel<<<static_cast<uint32_t>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t trimkv_gates(const TrimKvArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  trimkv_kernel<<<args.rows, kThreads, args.width * sizeof(float), stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
