// int2 keys: a channel of a group of tokens shares a scale. Two channels a thread, so that codes and scales
// need nobody else's numbers.

#ifndef KVTWIN_KERNELS_PACK_KEYS_CUH_
#define KVTWIN_KERNELS_PACK_KEYS_CUH_

#include "kernels/pack_rows.cuh"

namespace kvtwin::device {

constexpr uint32_t kKeyThreads = 128;

__device__ __forceinline__ float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// The codes of 16 tokens of one channel, lowest first.
template <typename Number>
__device__ __forceinline__ uint32_t code_word(const Quantiser<2>& quantiser, const Number& number) {
  uint32_t word = 0;
#pragma unroll
  for (int t = 15; t >= 0; --t) word = (word << 2) + (quantiser.code(number(t)) & 3);
  return word;
}

// Where two channels of a group of tokens are.
template <int kDim, int kGroup>
struct KeyPlace {
  static constexpr uint32_t kRowBytes = kGroup / 4;  // codes of a channel
  const KvBlockShape block;
  uint32_t channel = 0, first = 0;  // first slot
  size_t wide = 0;                  // numbers, of the block
  uint8_t* codes = nullptr;         // of the first of the two channels
  uint32_t* scales = nullptr;       // of both

  __device__ KeyPlace(const PackArgs& args, const PackedLayout& layout, uint32_t item, bool packing,
                      uint8_t* bytes)
      : block{args.shape.page_tokens, kDim} {
    const uint32_t pair = item % (kDim / 2), rest = item / (kDim / 2),
                   groups = args.shape.page_tokens / kGroup;
    const uint2 page = __ldg(reinterpret_cast<const uint2*>(args.pages) + rest / groups);
    channel = 2 * pair, first = rest % groups * kGroup;
    wide = (packing ? page.x : page.y) * block.numbers();
    uint8_t* const group = bytes + size_t{packing ? page.y : page.x} * layout.page_bytes +
                           rest % groups * (kDim * (kRowBytes + kScaleZeroBytes));
    codes = group + channel * kRowBytes;
    scales = reinterpret_cast<uint32_t*>(group + kDim * kRowBytes) + pair;
  }
  __device__ size_t at(uint32_t token) const { return wide + block.at(first + token, channel); }
};

template <int kDim, int kGroup>
__global__ void __launch_bounds__(kKeyThreads)
    pack_keys_kernel(const __grid_constant__ PackArgs args, const __grid_constant__ PackedLayout layout,
                     const __nv_bfloat16* pool, uint8_t* bytes) {
  const uint32_t item = blockIdx.x * kKeyThreads + threadIdx.x;
  if (item >= args.count * (args.shape.page_tokens / kGroup) * (kDim / 2)) return;
  const KeyPlace<kDim, kGroup> place(args, layout, item, true, bytes);
  // Up to 64 tokens stay in registers; more are read again, 16 at a time.
  constexpr int kHeld = kGroup <= 64 ? kGroup : 16;
  const auto* const numbers = reinterpret_cast<const uint32_t*>(pool);
  uint32_t pairs[kHeld];
  float low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int base = 0; base < kGroup; base += kHeld) {
#pragma unroll
    for (int t = 0; t < kHeld; ++t) pairs[t] = __ldg(numbers + place.at(base + t) / 2);
#pragma unroll
    for (int t = 0; t < kHeld; ++t) {
      low[0] = fminf(low[0], low_of(pairs[t])), high[0] = fmaxf(high[0], low_of(pairs[t]));
      low[1] = fminf(low[1], high_of(pairs[t])), high[1] = fmaxf(high[1], high_of(pairs[t]));
    }
  }
  const Quantiser<2> first(low[0], high[0]), second(low[1], high[1]);
  uint32_t words[kGroup / 8];  // all of the first channel's, then of the second
#pragma unroll
  for (int w = 0; w < kGroup / 16; ++w) {
    const int held = kHeld == kGroup ? 16 * w : 0;
    if constexpr (kHeld < kGroup) {
#pragma unroll
      for (int t = 0; t < 16; ++t) pairs[t] = __ldg(numbers + place.at(16 * w + t) / 2);
    }
    words[w] = code_word(first, [&](int t) { return low_of(pairs[held + t]); });
    words[kGroup / 16 + w] = code_word(second, [&](int t) { return high_of(pairs[held + t]); });
  }
#pragma unroll
  for (int i = 0; i < kGroup / 32; ++i) {
    reinterpret_cast<uint4*>(place.codes)[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                                words[4 * i + 3]};
  }
  const __half2 scale(first.scale, second.scale), zero(first.zero, second.zero);
  place.scales[0] = *reinterpret_cast<const uint32_t*>(&scale);
  place.scales[kDim / 2] = *reinterpret_cast<const uint32_t*>(&zero);
}

template <int kDim, int kGroup>
__global__ void __launch_bounds__(kKeyThreads)
    unpack_keys_kernel(const __grid_constant__ PackArgs args, const __grid_constant__ PackedLayout layout,
                       __nv_bfloat16* pool, uint8_t* bytes) {
  const uint32_t item = blockIdx.x * kKeyThreads + threadIdx.x;
  if (item >= args.count * (args.shape.page_tokens / kGroup) * (kDim / 2)) return;
  const KeyPlace<kDim, kGroup> place(args, layout, item, false, bytes);
  uint32_t words[kGroup / 8];
#pragma unroll
  for (int i = 0; i < kGroup / 32; ++i) {
    const uint4 raw = load_once(reinterpret_cast<const uint4*>(place.codes) + i);
    words[4 * i] = raw.x, words[4 * i + 1] = raw.y, words[4 * i + 2] = raw.z, words[4 * i + 3] = raw.w;
  }
  const uint32_t raw_scale = __ldcs(place.scales), raw_zero = __ldcs(place.scales + kDim / 2);
  const float2 scale = __half22float2(*reinterpret_cast<const __half2*>(&raw_scale));
  const float2 zero = __half22float2(*reinterpret_cast<const __half2*>(&raw_zero));
#pragma unroll
  for (int t = 0; t < kGroup; ++t) {
    const uint32_t a = words[t / 16] >> 2 * (t % 16) & 3, b = words[kGroup / 16 + t / 16] >> 2 * (t % 16) & 3;
    *reinterpret_cast<uint32_t*>(pool + place.at(t)) =
        pack_bf16(value_of(a, scale.x, zero.x), value_of(b, scale.y, zero.y));
  }
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACK_KEYS_CUH_
