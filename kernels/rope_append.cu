#include "kernels/bf16_chunk.cuh"
#include "kernels/kv_block.cuh"
#include "kernels/rope_append_cuda.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 256;
constexpr uint32_t kAtOnce = 4;  // (row, head) parts that a thread has in flight

// A thread has channels [8 lane, 8 lane + 8) of a head's first half, and those half a head further on.
template <int kDim>
struct Part {
  static constexpr uint32_t kLanes = kDim / 16;

  uint32_t row = 0, head = 0, lane = 0;
  uint4 low, high;

  __device__ void load(const RopeAppendArgs& args, uint32_t heads, uint32_t row_at, uint32_t item,
                       bool real) {
    lane = item % kLanes;
    row = row_at + item / kLanes / heads, head = item / kLanes % heads;
    if (!real) return;
    const __nv_bfloat16* const from = args.qkv + (size_t{row} * heads + head) * kDim + 8 * lane;
    low = load_once(from), high = load_once(from + kDim / 2);
  }

  __device__ static void norm(const __nv_bfloat16* weight, float eps, uint32_t lane, float (&a)[8],
                              float (&b)[8]) {
    float sum = 0, wa[8], wb[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += a[i] * a[i] + b[i] * b[i];
#pragma unroll
    for (uint32_t by = kLanes / 2; by > 0; by /= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
    const float scale = 1 / sqrtf(sum / kDim + eps);
    widen(__ldg(reinterpret_cast<const uint4*>(weight) + lane), wa);
    widen(__ldg(reinterpret_cast<const uint4*>(weight + kDim / 2) + lane), wb);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] *= scale * wa[i], b[i] *= scale * wb[i];
  }

  template <bool kNorm>
  __device__ void turn(const RopeAppendArgs& args, const float2* turns) {
    float a[8], b[8];
    const bool query = head < args.query_heads;
    const bool turned = head < args.query_heads + args.kv_heads;
    const __nv_bfloat16* const weight = query ? args.q_norm : args.k_norm;
    widen(low, a), widen(high, b);
    if constexpr (kNorm) {  // all lanes together: the sum is of several
      float na[8], nb[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) na[i] = a[i], nb[i] = b[i];
      norm(weight != nullptr        ? weight
           : args.q_norm != nullptr ? args.q_norm
                                    : args.k_norm,
           args.eps, lane, na, nb);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (turned && weight != nullptr) a[i] = na[i], b[i] = nb[i];
      }
    }
    if (!turned) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 by = turns[8 * lane + i];
      const float x = a[i] * by.x - b[i] * by.y, y = b[i] * by.x + a[i] * by.y;
      a[i] = x, b[i] = y;
    }
    low = narrow(a), high = narrow(b);
  }

  __device__ void store(const RopeAppendArgs& args) const {
    if (head < args.query_heads) {
      return put(args.q + size_t{row} * args.q_stride + head * kDim + 8 * lane, kDim / 2);
    }
    const bool key = head < args.query_heads + args.kv_heads;
    const uint32_t kv_head = head - args.query_heads - (key ? 0 : args.kv_heads);
    if (key && args.k != nullptr) {
      put(args.k + size_t{row} * args.k_stride + kv_head * kDim + 8 * lane, kDim / 2);
    }
    if (args.pool == nullptr) return;
    const bool shared = args.slots_per_row == 1;
    const AppendSlot slot = args.slots[size_t{row} * args.slots_per_row + (shared ? 0 : kv_head)];
    if (slot.block == kNoBlock) return;
    const KvBlockShape block{args.page_tokens, kDim};
    __nv_bfloat16* const to = args.pool + (size_t{slot.block} + (shared ? kv_head : 0)) * block.numbers() +
                              (key ? 0 : size_t{args.page_tokens} * kDim);
    *reinterpret_cast<uint4*>(to + block.at(slot.slot, 8 * lane)) = low;
    *reinterpret_cast<uint4*>(to + block.at(slot.slot, 8 * lane + kDim / 2)) = high;
  }
  __device__ void put(__nv_bfloat16* to, uint32_t half) const {
    *reinterpret_cast<uint4*>(to) = low, *reinterpret_cast<uint4*>(to + half) = high;
  }
};

// A CTA has `kRows` rows: their cosines and sines first, while the first numbers are on their way.
template <int kDim, int kRows, bool kNorm>
__global__ void __launch_bounds__(kThreads) rope_append_kernel(const __grid_constant__ RopeAppendArgs args) {
  __shared__ float2 turns[kRows * kDim / 2];
  const uint32_t row_at = blockIdx.x * kRows, heads = args.query_heads + 2 * args.kv_heads;
  const uint32_t rows = min(static_cast<uint32_t>(kRows), args.rows - row_at);
  const uint32_t items = rows * heads * Part<kDim>::kLanes;
  bool ready = false;
  for (uint32_t base = 0; base < items; base += kAtOnce * kThreads) {
    Part<kDim> parts[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t item = base + i * kThreads + threadIdx.x;
      parts[i].load(args, heads, row_at, item, item < items);
    }
    if (!ready) {
      for (uint32_t i = threadIdx.x; i < rows * kDim / 2; i += kThreads) {
        float sine, cosine;
        const float position = static_cast<float>(args.positions[row_at + i / (kDim / 2)]);
        sincosf(position * args.inv_freq[i % (kDim / 2)], &sine, &cosine);
        turns[i] = {args.rope_scale * cosine, args.rope_scale * sine};
      }
      __syncthreads();
      ready = true;
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const bool real = base + i * kThreads + threadIdx.x < items;
      parts[i].template turn<kNorm>(args, turns + (real ? parts[i].row - row_at : 0) * (kDim / 2));
      if (real) parts[i].store(args);
    }
  }
}

template <int kDim, bool kNorm>
cudaError_t launch(const RopeAppendArgs& args, cudaStream_t stream) {
  if (args.rows < 1024) {  // fewer rows than the GPU has places for: one each
    rope_append_kernel<kDim, 1, kNorm><<<args.rows, kThreads, 0, stream>>>(args);
  } else {
    rope_append_kernel<kDim, 4, kNorm><<<(args.rows + 3) / 4, kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}
template <int kDim>
cudaError_t launch(const RopeAppendArgs& args, cudaStream_t stream) {
  const bool norm = args.q_norm != nullptr || args.k_norm != nullptr;
  return norm ? launch<kDim, true>(args, stream) : launch<kDim, false>(args, stream);
}

}  // namespace

cudaError_t rope_append(const RopeAppendArgs& args, cudaStream_t stream) {
  const bool page = args.page_tokens == 1 || (args.page_tokens > 0 && args.page_tokens % 8 == 0);
  const bool slots = args.slots_per_row == 1 || args.slots_per_row == args.kv_heads;
  if (!page || !slots || args.q_stride % 8 != 0 || args.k_stride % 8 != 0) return cudaErrorInvalidValue;
  if (args.head_dim != 64 && args.head_dim != 128 && args.head_dim != 256) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  if (args.head_dim == 64) return launch<64>(args, stream);
  return args.head_dim == 128 ? launch<128>(args, stream) : launch<256>(args, stream);
}

}  // namespace kvtwin
