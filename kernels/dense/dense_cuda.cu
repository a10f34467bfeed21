#include <cmath>

#include "kernels/dense/dense_cuda.h"

namespace kvtwin {
namespace {

constexpr uint32_t kThreads = 512;

// Sum over the CTA, returned to all threads.
__device__ float sum_of_all(float value) {
  __shared__ float sums[kThreads / 32];
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(0xffffffffu, value, by);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

__global__ void __launch_bounds__(kThreads) embed_kernel(const EmbedArgs args) {
  const __nv_bfloat16* const from = args.table + size_t{args.tokens[blockIdx.x]} * args.width;
  float* const to = args.x + size_t{blockIdx.x} * args.width;
  for (uint32_t i = threadIdx.x; i < args.width; i += kThreads) to[i] = __bfloat162float(from[i]);
}

__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const RmsNormArgs args) {
  const size_t row = args.pick != nullptr ? args.pick[blockIdx.x] : blockIdx.x;
  const float* const x = args.x + row * args.width;
  __nv_bfloat16* const out = args.out + size_t{blockIdx.x} * args.width;
  float sum = 0;
  for (uint32_t i = threadIdx.x; i < args.width; i += kThreads) sum += x[i] * x[i];
  const float mean = sum_of_all(sum) / static_cast<float>(args.width);
  const float by = 1 / sqrtf(mean + args.eps);
  for (uint32_t i = threadIdx.x; i < args.width; i += kThreads)
    out[i] = __float2bfloat16_rn(x[i] * by * args.weight[i]);
}

// The same for widths that are multiples of 4, at most 4 * kRetained * kThreads: the row is read once into
// registers, and the weights are loaded at the same time.
constexpr uint32_t kRetained = 4;
__global__ void __launch_bounds__(kThreads) rms_norm_kept_kernel(const RmsNormArgs args) {
  const size_t row = args.pick != nullptr ? args.pick[blockIdx.x] : blockIdx.x;
  const auto* const x = reinterpret_cast<const float4*>(args.x + row * args.width);
  const auto* const weight = reinterpret_cast<const float4*>(args.weight);
  auto* const out = reinterpret_cast<uint2*>(args.out + size_t{blockIdx.x} * args.width);
  float4 retained[kRetained], w[kRetained];
  float sum = 0;
#pragma unroll
  for (uint32_t k = 0; k < kRetained; ++k) {
    const uint32_t i = k * kThreads + threadIdx.x;
    retained[k] = i < args.width / 4 ? x[i] : float4{};
    w[k] = i < args.width / 4 ? weight[i] : float4{};
    sum += retained[k].x * retained[k].x + retained[k].y * retained[k].y + retained[k].z * retained[k].z +
           retained[k].w * retained[k].w;
  }
  const float by = 1 / sqrtf(sum_of_all(sum) / static_cast<float>(args.width) + args.eps);
#pragma unroll
  for (uint32_t k = 0; k < kRetained; ++k) {
    const uint32_t i = k * kThreads + threadIdx.x;
    if (i >= args.width / 4) break;
    const __nv_bfloat162 low =
        __floats2bfloat162_rn(retained[k].x * by * w[k].x, retained[k].y * by * w[k].y);
    const __nv_bfloat162 high =
        __floats2bfloat162_rn(retained[k].z * by * w[k].z, retained[k].w * by * w[k].w);
    out[i] = {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
  }
}

__device__ float silu(float x) { return x / (1 + expf(-x)); }

// Two adjacent elements per thread. (Widths are even: check_dense requires it of the heads.)
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(const SiluMulArgs args) {
  const uint32_t pairs = args.width / 2;
  const auto* const gate = reinterpret_cast<const __nv_bfloat162*>(args.gate_up);
  auto* const out = reinterpret_cast<__nv_bfloat162*>(args.out);
  const size_t count = size_t{args.rows} * pairs;
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count; i += size_t{gridDim.x} * kThreads) {
    const size_t row = i / pairs, at = row * 2 * pairs + i % pairs;
    const float2 g = __bfloat1622float2(gate[at]), u = __bfloat1622float2(gate[at + pairs]);
    out[i] = __floats2bfloat162_rn(silu(g.x) * u.x, silu(g.y) * u.y);
  }
}

// Eight adjacent elements per thread, for widths that are multiples of 8.
__global__ void __launch_bounds__(kThreads) silu_mul_eights_kernel(const SiluMulArgs args) {
  const uint32_t eights = args.width / 8;
  const auto* const gate = reinterpret_cast<const uint4*>(args.gate_up);
  auto* const out = reinterpret_cast<uint4*>(args.out);
  const size_t count = size_t{args.rows} * eights;
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count; i += size_t{gridDim.x} * kThreads) {
    const size_t row = i / eights, at = row * 2 * eights + i % eights;
    uint4 g = gate[at];
    const uint4 u = gate[at + eights];
    auto* const gs = reinterpret_cast<__nv_bfloat162*>(&g);
    const auto* const us = reinterpret_cast<const __nv_bfloat162*>(&u);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 a = __bfloat1622float2(gs[k]), b = __bfloat1622float2(us[k]);
      gs[k] = __floats2bfloat162_rn(silu(a.x) * b.x, silu(a.y) * b.y);
    }
    out[i] = g;
  }
}

__global__ void __launch_bounds__(kThreads) add_bias_kernel(const AddBiasArgs args) {
  float* const x = args.x + size_t{blockIdx.x} * args.width;
  for (uint32_t i = threadIdx.x; i < args.width; i += kThreads) x[i] += args.bias[i];
}

// Takes the larger value; of equal ones the smaller index.
__device__ void take_larger(float* best, uint32_t* at, float other, uint32_t other_at) {
  if (other > *best || (other == *best && other_at < *at)) *best = other, *at = other_at;
}

constexpr uint32_t kArgmaxThreads = 1024;

__global__ void __launch_bounds__(kArgmaxThreads) argmax_kernel(const ArgmaxArgs args) {
  __shared__ float values[kArgmaxThreads / 32];
  __shared__ uint32_t places[kArgmaxThreads / 32];
  const float* const logits = args.logits + size_t{blockIdx.x} * args.count;
  float best = -INFINITY;
  uint32_t at = threadIdx.x == 0 ? 0 : args.count;
  const auto see = [&](float one, uint32_t i) {
    if (one > best) best = one, at = i;  // false for NaN
  };
  uint32_t done = 0;
  if (args.count % 4 == 0) {  // rows are aligned to 16 bytes
    const auto* const fours = reinterpret_cast<const float4*>(logits);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < args.count / 4; i += kArgmaxThreads) {
      const float4 four = fours[i];
      see(four.x, 4 * i), see(four.y, 4 * i + 1), see(four.z, 4 * i + 2), see(four.w, 4 * i + 3);
    }
    done = args.count;
  }
  for (uint32_t i = done + threadIdx.x; i < args.count; i += kArgmaxThreads) see(logits[i], i);
  for (int by = 16; by > 0; by /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, best, by);
    take_larger(&best, &at, other, __shfl_xor_sync(0xffffffffu, at, by));
  }
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = best, places[threadIdx.x / 32] = at;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (uint32_t i = 1; i < kArgmaxThreads / 32; ++i) take_larger(&best, &at, values[i], places[i]);
  args.out[blockIdx.x] = at;
}

__device__ uint64_t mixed(uint64_t z) {  // mix64 of engine/base/prng.h
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

__global__ void __launch_bounds__(kThreads) draw_kernel(const DrawArgs args) {
  for (uint64_t i = blockIdx.x * uint64_t{kThreads} + threadIdx.x; i < args.count;
       i += uint64_t{gridDim.x} * kThreads) {
    const uint64_t bits = mixed(args.key + i * 0x9e3779b97f4a7c15u);
    const int sum =
        static_cast<int>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) -
        131'070;
    // Rounded after every operation, as on the host.
    const float noise = __fmul_rn(static_cast<float>(sum), 2.642882e-5f);
    args.out[i] = __float2bfloat16_rn(__fadd_rn(args.mean, __fmul_rn(args.gain, noise)));
  }
}

uint32_t blocks_for(uint64_t items) {
  constexpr uint64_t kMost = 132 * 16;
  const uint64_t wanted = (items + kThreads - 1) / kThreads;
  return static_cast<uint32_t>(wanted < kMost ? wanted : kMost);
}

}  // namespace

cudaError_t embed(const EmbedArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  embed_kernel<<<args.rows, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t rms_norm(const RmsNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const bool retained = args.width % 4 == 0 && args.width <= 4 * kRetained * kThreads;
  const auto kernel = retained ? rms_norm_kept_kernel : rms_norm_kernel;
  kernel<<<args.rows, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t silu_mul(const SiluMulArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.width % 2 != 0) return cudaErrorInvalidValue;
  const uint64_t numbers = uint64_t{args.rows} * args.width;
  if (args.width % 8 == 0) {
    silu_mul_eights_kernel<<<blocks_for(numbers / 8), kThreads, 0, stream>>>(args);
  } else {
    silu_mul_kernel<<<blocks_for(numbers / 2), kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

cudaError_t add_bias(const AddBiasArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  add_bias_kernel<<<args.rows, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t argmax(const ArgmaxArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.count == 0) return cudaErrorInvalidValue;
  argmax_kernel<<<args.rows, kArgmaxThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t draw_weights(const DrawArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  draw_kernel<<<blocks_for(args.count), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t kernels_run_here() {
  cudaFuncAttributes found;
  return cudaFuncGetAttributes(&found, embed_kernel);
}

}  // namespace kvtwin
