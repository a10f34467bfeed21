// int2 keys: a channel of a group of tokens shares a scale. A thread has two channels of 32 tokens, so its
// codes are whole words; in larger groups, adjacent lanes find the bounds together.

#ifndef KVTWIN_KERNELS_QUANT_PACK_KEYS_CUH_
#define KVTWIN_KERNELS_QUANT_PACK_KEYS_CUH_

#include "kernels/quant/pack_rows.cuh"

namespace kvtwin::device {

constexpr uint32_t kKeyTokens = 32;  // tokens of a thread

// Location of a thread's two channels. A warp has 32 / kParts pairs of channels, and of each kParts times 32
// tokens.
template <int kDim, int kGroup>
struct KeyPlace {
  static constexpr uint32_t kParts = kGroup / kKeyTokens, kPairs = 32 / kParts;
  static constexpr uint32_t kWarps = kDim / 2 / kPairs;  // warps per group of tokens
  static constexpr uint32_t kRowBytes = kGroup / 4;      // bytes of a channel's codes

  uint32_t part = 0, pair = 0;
  size_t wide = 0;  // index of the first token's row, in pairs of numbers
  uint8_t* codes = nullptr;
  uint32_t* scales = nullptr;  // of both channels

  // `warp`: index over all groups of all pages.
  __device__ KeyPlace(const PackArgs& args, const PackedLayout& layout, uint32_t warp, bool packing,
                      uint8_t* bytes) {
    const uint32_t groups = args.shape.page_tokens / kGroup, group = warp / kWarps;
    const uint2 page = __ldg(reinterpret_cast<const uint2*>(args.pages) + group / groups);
    part = threadIdx.x % 32 / kPairs, pair = warp % kWarps * kPairs + threadIdx.x % kPairs;
    const uint32_t slot = group % groups * kGroup + part * kKeyTokens;
    wide = (size_t{packing ? page.x : page.y} * 2 * args.shape.page_tokens + slot) * (kDim / 2);
    uint8_t* const at = bytes + size_t{packing ? page.y : page.x} * layout.page_bytes +
                        group % groups * (kDim * (kRowBytes + kScaleZeroBytes));
    codes = at + 2 * pair * kRowBytes + part * (kKeyTokens / 4);
    scales = reinterpret_cast<uint32_t*>(at + kDim * kRowBytes) + pair;
  }
  // Chunks of rows are swizzled (kv_block.cuh); the first row's slot is a multiple of 8.
  __device__ __forceinline__ size_t at(uint32_t token) const {
    return wide + token * (kDim / 2) + (pair / 4 ^ (token & 7)) * 4 + pair % 4;
  }
};

__device__ __forceinline__ float channel_of(uint32_t pair, int which) {
  return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

// Codes of one channel's 32 tokens.
__device__ __forceinline__ uint2 code_words(const Quantiser<2>& quantiser,
                                            const uint32_t (&pairs)[kKeyTokens], int which) {
  uint32_t words[2];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    float x[16];
    uint32_t codes[16];
#pragma unroll
    for (int t = 0; t < 16; ++t) x[t] = channel_of(pairs[16 * w + t], which);
    quantiser.codes(x, codes);
    words[w] = code_word<2>(codes);
  }
  return {words[0], words[1]};
}

template <int kDim, int kGroup>
__device__ void pack_keys(const PackArgs& args, const PackedLayout& layout, uint32_t warp,
                          const __nv_bfloat16* pool, uint8_t* bytes) {
  using Place = KeyPlace<kDim, kGroup>;
  const Place place(args, layout, warp, true, bytes);
  uint32_t pairs[kKeyTokens];
#pragma unroll
  for (int t = 0; t < 32; ++t) pairs[t] = __ldcs(reinterpret_cast<const uint32_t*>(pool) + place.at(t));
  __nv_bfloat162 low = *reinterpret_cast<const __nv_bfloat162*>(&pairs[0]), high = low;
#pragma unroll
  for (int t = 1; t < 32; ++t) {
    const __nv_bfloat162 x = *reinterpret_cast<const __nv_bfloat162*>(&pairs[t]);
    low = __hmin2(low, x), high = __hmax2(high, x);
  }
#pragma unroll
  for (uint32_t by = Place::kPairs; by < 32; by *= 2) {
    low = __hmin2(low, __shfl_xor_sync(kAllLanes, low, by));
    high = __hmax2(high, __shfl_xor_sync(kAllLanes, high, by));
  }
  const float2 least = __bfloat1622float2(low), most = __bfloat1622float2(high);
  const Quantiser<2> first(least.x, most.x), second(least.y, most.y);
  const uint2 a = code_words(first, pairs, 0), b = code_words(second, pairs, 1);
  if constexpr (Place::kRowBytes == sizeof(uint2)) {  // both channels' codes are adjacent
    *reinterpret_cast<uint4*>(place.codes) = {a.x, a.y, b.x, b.y};
  } else {
    *reinterpret_cast<uint2*>(place.codes) = a;
    *reinterpret_cast<uint2*>(place.codes + Place::kRowBytes) = b;
  }
  if (place.part != 0) return;
  const __half2 scale(first.scale, second.scale), zero(first.zero, second.zero);
  place.scales[0] = *reinterpret_cast<const uint32_t*>(&scale);
  place.scales[kDim / 2] = *reinterpret_cast<const uint32_t*>(&zero);
}

template <int kDim, int kGroup>
__device__ void unpack_keys(const PackArgs& args, const PackedLayout& layout, uint32_t warp,
                            __nv_bfloat16* pool, uint8_t* bytes) {
  using Place = KeyPlace<kDim, kGroup>;
  const Place place(args, layout, warp, false, bytes);
  const uint2 a = __ldcs(reinterpret_cast<const uint2*>(place.codes));
  const uint2 b = __ldcs(reinterpret_cast<const uint2*>(place.codes + Place::kRowBytes));
  const uint32_t raw_scale = __ldcs(place.scales), raw_zero = __ldcs(place.scales + kDim / 2);
  const float2 scale = __half22float2(*reinterpret_cast<const __half2*>(&raw_scale));
  const float2 zero = __half22float2(*reinterpret_cast<const __half2*>(&raw_zero));
#pragma unroll
  for (int t = 0; t < 32; ++t) {
    const uint32_t first = (t < 16 ? a.x : a.y) >> 2 * (t % 16) & 3,
                   second = (t < 16 ? b.x : b.y) >> 2 * (t % 16) & 3;
    reinterpret_cast<uint32_t*>(pool)[place.at(t)] =
        pack_bf16(value_of(first, scale.x, zero.x), value_of(second, scale.y, zero.y));
  }
}

// int2 pages: the first `key_warps` warps convert keys, the others blocks of rows of values.
template <int kDim, int kGroup, bool kPack>
__global__ void __launch_bounds__(kPackThreads)
    int2_kernel(const __grid_constant__ PackArgs args, const __grid_constant__ PackedLayout layout,
                uint32_t key_warps, __nv_bfloat16* pool, uint8_t* bytes) {
  constexpr int kWidth = kGroup < kDim ? kGroup : kDim;
  const uint32_t warp = blockIdx.x * (kPackThreads / 32) + threadIdx.x / 32;
  if (warp >= key_warps) {
    convert_rows<2, kDim, kWidth, kPack>(args, layout, warp - key_warps, pool, bytes);
  } else if constexpr (kPack) {
    pack_keys<kDim, kGroup>(args, layout, warp, pool, bytes);
  } else {
    unpack_keys<kDim, kGroup>(args, layout, warp, pool, bytes);
  }
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_QUANT_PACK_KEYS_CUH_
