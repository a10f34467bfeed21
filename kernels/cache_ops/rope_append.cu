#include <algorithm>

#include "kernels/cache_ops/rope_append_cuda.h"
#include "kernels/common/bf16_chunk.cuh"
#include "kernels/common/kv_block.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreadsMax = 384;

// A thread has channels [8 lane, 8 lane + 8) of a head's first half and the same of its second half.
template <int kDim>
struct Part {
  static constexpr uint32_t kLanes = kDim / 16;

  uint32_t row = 0, head = 0, lane = 0;
  uint4 low, high;

  __device__ void load(const RopeAppendArgs& args, uint32_t heads) {
    const __nv_bfloat16* const from = args.qkv + (size_t{row} * heads + head) * kDim + 8 * lane;
    low = load_once(from), high = load_once(from + kDim / 2);
  }

  // Called by all lanes of a warp, because the sum spans several. `weight` null: this head has no norm.
  __device__ void norm(const __nv_bfloat16* weight, float eps, float (&a)[8], float (&b)[8]) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += a[i] * a[i] + b[i] * b[i];
#pragma unroll
    for (uint32_t by = kLanes / 2; by > 0; by /= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
    if (weight == nullptr) return;
    const float scale = rsqrtf(sum / kDim + eps);
    float wa[8], wb[8];
    widen(__ldg(reinterpret_cast<const uint4*>(weight) + lane), wa);
    widen(__ldg(reinterpret_cast<const uint4*>(weight + kDim / 2) + lane), wb);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] *= scale * wa[i], b[i] *= scale * wb[i];
  }

  template <bool kNorm>
  __device__ void turn(const RopeAppendArgs& args, const float2* turns) {
    const bool query = head < args.query_heads, turned = head < args.query_heads + args.kv_heads;
    if (!kNorm && !turned) return;
    float a[8], b[8];
    widen(low, a), widen(high, b);
    if constexpr (kNorm) norm(!turned ? nullptr : query ? args.q_norm : args.k_norm, args.eps, a, b);
    if (!turned) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 by = turns[i * kLanes + lane];
      const float x = a[i] * by.x - b[i] * by.y, y = b[i] * by.x + a[i] * by.y;
      a[i] = x, b[i] = y;
    }
    low = low_bit(a), high = low_bit(b);
  }

  // kStream: the output exceeds L2, so stores are evict-first.
  template <bool kStream>
  __device__ void store(const RopeAppendArgs& args) const {
    if (head < args.query_heads) {
      return put<kStream>(args.q + size_t{row} * args.q_stride + head * kDim + 8 * lane, kDim / 2);
    }
    const bool key = head < args.query_heads + args.kv_heads;
    const uint32_t kv_head = head - args.query_heads - (key ? 0 : args.kv_heads);
    if (key && args.k != nullptr) {
      put<kStream>(args.k + size_t{row} * args.k_stride + kv_head * kDim + 8 * lane, kDim / 2);
    }
    if (args.pool == nullptr) return;
    const bool shared = args.slots_per_row == 1;
    const AppendSlot slot = args.slots[size_t{row} * args.slots_per_row + (shared ? 0 : kv_head)];
    if (slot.block == kNoBlock) return;
    const KvBlockShape block{args.page_tokens, kDim};
    __nv_bfloat16* const to = args.pool + (size_t{slot.block} + (shared ? kv_head : 0)) * block.numbers() +
                              (key ? 0 : size_t{args.page_tokens} * kDim);
    write<kStream>(to + block.at(slot.slot, 8 * lane), low);
    write<kStream>(to + block.at(slot.slot, 8 * lane + kDim / 2), high);
  }
  template <bool kStream>
  __device__ void put(__nv_bfloat16* to, uint32_t half) const {
    write<kStream>(to, low), write<kStream>(to + half, high);
  }
  template <bool kStream>
  __device__ static void write(__nv_bfloat16* to, const uint4& chunk) {
    if constexpr (kStream) {
      __stcs(reinterpret_cast<uint4*>(to), chunk);
    } else {
      *reinterpret_cast<uint4*>(to) = chunk;
    }
  }
};

// A CTA has some heads (blockIdx.y) of `kRows` rows. It computes their cosines and sines while the first
// numbers load. A thread has the same part of each row.
template <int kDim, int kRows, bool kNorm, int kThreads, int kCtas>
__global__ void __launch_bounds__(kThreads, kCtas)
    rope_append_kernel(const __grid_constant__ RopeAppendArgs args) {
  constexpr uint32_t kHalf = kDim / 2, kLanes = Part<kDim>::kLanes;
  __shared__ float2 turns[kRows * kHalf];  // [rows][8][kLanes]: adjacent lanes read adjacent pairs
  const uint32_t first = blockIdx.x * kRows, heads = args.query_heads + 2 * args.kv_heads;
  const uint32_t items = heads * kLanes, start = blockIdx.y * blockDim.x;
  for (uint32_t base = start; base < items; base += blockDim.x * gridDim.y) {
    const uint32_t item = base + threadIdx.x, clamped = min(item, items - 1);
    Part<kDim> parts[kRows];
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
      parts[i].row = min(first + i, args.rows - 1), parts[i].head = clamped / kLanes,
      parts[i].lane = item % kLanes;
      parts[i].load(args, heads);
    }
    if (base == start) {
      for (uint32_t i = threadIdx.x; i < kRows * kHalf; i += blockDim.x) {
        const auto position = static_cast<float>(args.positions[min(first + i / kHalf, args.rows - 1)]);
        float sine, cosine;
        sincosf(position * args.inv_freq[i % kHalf], &sine, &cosine);
        const uint32_t row = i / kHalf, lane = i % kHalf / 8;
        turns[row * kHalf + i % 8 * kLanes + lane] = {args.rope_scale * cosine, args.rope_scale * sine};
      }
      __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
      parts[i].template turn<kNorm>(args, turns + i * kHalf);
      if (item < items && first + i < args.rows) parts[i].template store<(kRows > 1)>(args);
    }
  }
}

template <int kDim, bool kNorm>
cudaError_t launch(const RopeAppendArgs& args, cudaStream_t stream) {
  const uint32_t items = (args.query_heads + 2 * args.kv_heads) * Part<kDim>::kLanes;
  const auto ctas_of = [&](uint32_t threads) { return (items + threads - 1) / threads; };
  if (args.rows < 1024) {  // fewer rows than resident CTAs: one row each
    const uint32_t threads = std::min(ctas_of(32) * 32, kThreadsMax);
    rope_append_kernel<kDim, 1, kNorm, kThreadsMax, 3><<<args.rows, threads, 0, stream>>>(args);
  } else if (args.rows < 4096) {  // small CTAs shorten the last wave
    rope_append_kernel<kDim, 1, kNorm, 128, 10><<<dim3(args.rows, ctas_of(128)), 128, 0, stream>>>(args);
  } else {
    rope_append_kernel<kDim, 2, kNorm, 192, 6>
        <<<dim3((args.rows + 1) / 2, ctas_of(192)), 192, 0, stream>>>(args);
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
