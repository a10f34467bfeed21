#include <algorithm>

#include "kernels/cache_ops/page_moves.h"
#include "kernels/common/bf16_chunk.cuh"
#include "kernels/common/kv_block.cuh"
#include "kernels/select/summarise_ring.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 128;

// Adjacent bf16 numbers that a thread loads at once: 8, or 4 if it holds many KV entries.
template <int kChannels>
struct Numbers {
  uint32_t words[kChannels / 2];

  __device__ __forceinline__ void load(const __nv_bfloat16* at) {
    if constexpr (kChannels == 8) {
      const uint4 x = load_once(at);
      words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
    } else {
      const uint2 x = __ldcs(reinterpret_cast<const uint2*>(at));
      words[0] = x.x, words[1] = x.y;
    }
  }
  __device__ __forceinline__ void widen(float (&x)[kChannels]) const {
#pragma unroll
    for (int i = 0; i < kChannels; ++i)
      x[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
  __device__ __forceinline__ static void store(const float (&x)[kChannels], __nv_bfloat16* at) {
#pragma unroll
    for (int i = 0; i < kChannels; i += 4)
      *reinterpret_cast<uint2*>(at + i) = {pack_bf16(x[i], x[i + 1]), pack_bf16(x[i + 2], x[i + 3])};
  }
};

// A thread's channels of a page's KV entries, kHeld of them in registers at a time.
template <uint32_t kHeld, int kChannels>
struct KvEntries {
  Numbers<kChannels> rows[kHeld];

  __device__ void load(const __nv_bfloat16* keys, const KvBlockShape& block, uint32_t first,
                       uint32_t kv_entries, uint32_t channel) {
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
      if (first + i < kv_entries) rows[i].load(keys + block.at(first + i, channel));
    }
  }
  // Calls take(x) for each of them in order.
  template <typename Take>
  __device__ void each(uint32_t first, uint32_t kv_entries, const Take& take) const {
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
      if (first + i >= kv_entries) break;
      float x[kChannels];
      rows[i].widen(x);
      take(x);
    }
  }
};

// One thread per some channels of a page: sums have the order of the definition, without synchronisation.
// kHeld: KV entries in registers; keys that are read twice (cuboid) are loaded once if a page has no more.
template <PageSummaryKind kKind, uint32_t kHeld, int kChannels>
__global__ void __launch_bounds__(kThreads) summarise_kernel(const __grid_constant__ SummaryArgs args) {
  const uint32_t chunks = args.head_dim / kChannels, at = blockIdx.x * kThreads + threadIdx.x;
  if (at / chunks >= args.count) return;
  const SummaryPage page = args.pages[at / chunks];
  if (page.kv_entries == 0) return;
  const KvBlockShape block{args.page_tokens, args.head_dim};
  const __nv_bfloat16* const keys = args.pool + page.block * block.numbers();
  const uint32_t channel = at % chunks * kChannels;
  const auto kv_entries = static_cast<float>(page.kv_entries);
  float high[kChannels], low[kChannels], sum[kChannels] = {};
#pragma unroll
  for (int i = 0; i < kChannels; ++i) high[i] = -INFINITY, low[i] = INFINITY;
  KvEntries<kHeld, kChannels> held;
  for (uint32_t first = 0; first < page.kv_entries; first += kHeld) {
    held.load(keys, block, first, page.kv_entries, channel);
    held.each(first, page.kv_entries, [&](const float(&x)[kChannels]) {
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        if (kKind == PageSummaryKind::kMean) sum[i] += x[i];
        high[i] = fmaxf(high[i], x[i]), low[i] = fminf(low[i], x[i]);
      }
    });
  }
  if (kKind == PageSummaryKind::kCuboid) {
    float center[kChannels];
#pragma unroll
    for (int i = 0; i < kChannels; ++i) center[i] = (high[i] + low[i]) * 0.5f;
    for (uint32_t first = 0; first < page.kv_entries; first += kHeld) {
      if (page.kv_entries > kHeld) held.load(keys, block, first, page.kv_entries, channel);
      held.each(first, page.kv_entries, [&](const float(&x)[kChannels]) {
#pragma unroll
        for (int i = 0; i < kChannels; ++i) sum[i] += fabsf(center[i] - x[i]);
      });
    }
#pragma unroll
    for (int i = 0; i < kChannels; ++i)
      high[i] = center[i] + sum[i] / kv_entries, low[i] = center[i] - sum[i] / kv_entries;
  } else if (kKind == PageSummaryKind::kMean) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) high[i] = low[i] = sum[i] / kv_entries;
  }
  __nv_bfloat16* const out = args.out + size_t{page.target} * 2 * args.head_dim + channel;
  Numbers<kChannels>::store(high, out), Numbers<kChannels>::store(low, out + args.head_dim);
}

constexpr uint64_t kRingBytes = 4u << 20;

template <PageSummaryKind kKind, int kChannels>
__global__ void __launch_bounds__(kRingWarps * 32, 1)
    ring_kernel(const __grid_constant__ SummaryArgs args, const __grid_constant__ SummaryRing ring) {
  extern __shared__ __align__(128) char memory[];
  SummaryWorker<kKind, kChannels>(args, ring, shared_address(memory)).run();
}

// Pages of at most 16 KB, and enough of them to fill an SM's shared memory.
bool takes_ring(const SummaryArgs& args) {
  const uint32_t bytes = args.page_tokens * args.head_dim * 2;
  return args.page_tokens >= 8 && args.head_dim <= 128 && bytes <= 16u << 10 &&
         uint64_t{args.count} * bytes >= kRingBytes && args.ctas > 0;
}

// Prefers warps to stages: one page is computed while another warp's loads.
template <PageSummaryKind kKind>
cudaError_t launch_ring(const SummaryArgs& args, cudaStream_t stream) {
  constexpr uint32_t kSlots = 216u << 10;  // bytes of pages per SM
  SummaryRing ring;
  ring.slot_bytes = args.page_tokens * args.head_dim * 2;
  const uint32_t warps = std::min(kSlots / ring.slot_bytes, kRingWarps);
  ring.stages = std::min(kSlots / (warps * ring.slot_bytes), kRingStages);
  const auto kernel = args.head_dim == 128 ? ring_kernel<kKind, 4> : ring_kernel<kKind, 2>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 SummaryRing::kBarriers + kSlots);
  if (error != cudaSuccess) return error;
  kernel<<<args.ctas, warps * 32, ring.shared(warps), stream>>>(args, ring);
  return cudaGetLastError();
}

}  // namespace

cudaError_t summarise_pages(const SummaryArgs& args, cudaStream_t stream) {
  const bool page = args.page_tokens == 1 || (args.page_tokens > 0 && args.page_tokens % 8 == 0);
  if (!page || args.head_dim == 0 || args.head_dim % 64 != 0) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  using enum PageSummaryKind;
  if (takes_ring(args)) {
    return args.kind == kMinMax ? launch_ring<kMinMax>(args, stream)
           : args.kind == kMean ? launch_ring<kMean>(args, stream)
                                : launch_ring<kCuboid>(args, stream);
  }
  const auto kernel = args.kind == kMinMax     ? summarise_kernel<kMinMax, 16, 8>
                      : args.kind == kMean     ? summarise_kernel<kMean, 16, 8>
                      : args.page_tokens <= 16 ? summarise_kernel<kCuboid, 16, 8>
                                               : summarise_kernel<kCuboid, 32, 4>;
  const bool many = args.kind == kCuboid && args.page_tokens > 16;
  const uint32_t threads = args.count * (args.head_dim / (many ? 4 : 8));
  kernel<<<(threads + kThreads - 1) / kThreads, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
