// Addresses of KV entries in bf16 and packed pools, and the conversion of one thread's piece of a row
// (convert_entries.h). Codes: quantise.cuh, bit-equal to pack_ref.cc.

#ifndef KVTWIN_KERNELS_QUANT_CONVERT_ROWS_CUH_
#define KVTWIN_KERNELS_QUANT_CONVERT_ROWS_CUH_

#include <cuda_fp8.h>

#include "kernels/common/bf16_chunk.cuh"
#include "kernels/common/kv_block.cuh"
#include "kernels/quant/convert_entries.h"
#include "kernels/quant/quantise.cuh"

namespace kvtwin::device {

// Page and slot of a KV entry, by shifts where pages have a power of two of tokens: a division costs as much
// as the rest of a piece.
class PagesOf {
 public:
  __device__ explicit PagesOf(uint32_t tokens) : tokens_(tokens) {
    while (shift_ < 31 && 1u << shift_ < tokens) ++shift_;
    if (1u << shift_ != tokens) shift_ = 32;
  }
  __device__ uint32_t page(uint32_t kv_entry) const {
    return shift_ < 32 ? kv_entry >> shift_ : kv_entry / tokens_;
  }
  __device__ uint32_t slot(uint32_t kv_entry) const { return kv_entry - page(kv_entry) * tokens_; }

 private:
  const uint32_t tokens_;
  uint32_t shift_ = 0;  // 32: not a power of two
};

// One KV head of a pool of bf16 pages.
class DequantizedPool {
 public:
  __device__ DequantizedPool(const ConvertArgs& args, uint32_t head)
      : block_{args.dequantized_page_tokens, args.shape.head_dim},
        pages_(args.dequantized_page_tokens),
        heads_(args.kv_heads),
        head_(head) {}

  __device__ uint32_t slot(uint32_t kv_entry) const { return pages_.slot(kv_entry); }
  // Index of the first number of a KV entry's row, ignoring the swizzle.
  __device__ size_t row(uint32_t side, uint32_t kv_entry) const {
    const size_t page = pages_.page(kv_entry);
    return (page * heads_ + head_) * block_.numbers() +
           (size_t{side} * block_.page_tokens + slot(kv_entry)) * block_.head_dim;
  }
  // Offset in a row of its channels [8 chunk, 8 chunk + 8).
  __device__ static uint32_t in_row(const KvBlockShape& block, uint32_t slot, uint32_t chunk) {
    return (chunk ^ block.swizzle(slot)) * 8;
  }
  __device__ uint4* chunk(__nv_bfloat16* pool, uint32_t side, uint32_t kv_entry, uint32_t chunk) const {
    return reinterpret_cast<uint4*>(pool + row(side, kv_entry) + in_row(block_, slot(kv_entry), chunk));
  }
  __device__ const KvBlockShape& block() const { return block_; }

 private:
  const KvBlockShape block_;
  const PagesOf pages_;
  const uint32_t heads_, head_;
};

// E2M1 of |x| at most 6: 0, 0.5, 1, 1.5, 2, 3, 4, 6; to nearest, ties to even.
__device__ __forceinline__ uint32_t e2m1_code(float x) {
  const float size = fabsf(x);
  const float code = size < 2 ? rintf(2 * size) : size < 4 ? 4 + rintf(size - 2) : 6 + rintf((size - 4) / 2);
  return static_cast<uint32_t>(fminf(code, 7)) | __float_as_uint(x) >> 31 << 3;
}
__device__ __forceinline__ float e2m1_value(uint32_t code) {
  const uint32_t size = code & 7;
  const float value = size < 4 ? 0.5f * size : size < 6 ? size - 2.f : 2.f * size - 8;
  return (code & 8) != 0 ? -value : value;
}

// Sizes of a packed page (engine/base/kv_format.h, which device code cannot call).
struct PackedBytes {
  uint64_t page = 0, values_at = 0;  // of one KV head
  uint32_t row = 0, key_group = 0;
  uint32_t groups = 0;  // groups of a row

  static PackedBytes of(const ConvertArgs& args) {
    PackedBytes out;
    out.row = token_bytes(args.format, args.shape), out.page = page_bytes(args.format, args.shape);
    out.values_at = out.page - uint64_t{args.shape.page_tokens} * out.row;
    if (args.format == Format::kInt2) out.key_group = key_group_bytes(2, args.shape);
    out.groups = args.shape.group == 0 ? 1 : channel_groups(args.shape);
    return out;
  }
};

// One KV head of a pool of packed pages.
template <Format kFormat>
class PackedEntries {
 public:
  __device__ PackedEntries(const ConvertArgs& args, const PackedBytes& bytes, uint32_t head)
      : shape_(args.shape),
        bytes_(bytes),
        dequantized_{args.dequantized_page_tokens, args.shape.head_dim},
        pages_(args.shape.page_tokens),
        heads_(args.kv_heads),
        head_(head) {}

  // Channels of a row per thread.
  __device__ uint32_t width() const {
    if (kFormat == Format::kFp8) return 8;
    return kFormat == Format::kFp4 ? kFp4Block : min(shape_.group, shape_.head_dim);
  }
  // Offset of the row of a KV entry's key (0) or value (1). int2 has rows for values only.
  __device__ size_t row(uint32_t side, uint32_t kv_entry) const {
    return block(kv_entry) + (side == 1 ? bytes_.values_at : 0) + size_t{pages_.slot(kv_entry)} * bytes_.row;
  }
  // Offset of the key group of a KV entry.
  __device__ size_t key_group(uint32_t kv_entry) const {
    return block(kv_entry) + pages_.slot(kv_entry) / shape_.group * size_t{bytes_.key_group};
  }

  __device__ void pack(const __nv_bfloat16* from, uint32_t slot, uint8_t* to, uint32_t piece) const {
    if constexpr (kFormat == Format::kFp8) {
      float x[8];
      load(from, slot, piece, x);
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = __nv_cvt_float2_to_fp8x2({x[2 * i], x[2 * i + 1]}, __NV_SATFINITE, __NV_E4M3);
      reinterpret_cast<uint2*>(to)[piece] = {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
    } else if constexpr (kFormat == Format::kFp4) {
      pack_fp4(from, slot, to, piece);
    } else {
      pack_group<kFormat == Format::kInt4 ? 4 : 2>(from, slot, to, piece);
    }
  }

  // Packs channel `channel` of the keys of one group, whose first KV entry in `pool` is `first`.
  __device__ void pack_keys(const __nv_bfloat16* dequantized, const DequantizedPool& pool, uint32_t first,
                            uint8_t* to, uint32_t channel) const {
    const auto key = [&](uint32_t token) {
      const uint32_t kv_entry = first + token,
                     at = DequantizedPool::in_row(dequantized_, pool.slot(kv_entry), channel / 8);
      return __bfloat162float(dequantized[pool.row(0, kv_entry) + at + channel % 8]);
    };
    float low = key(0), high = low;
    for (uint32_t t = 1; t < shape_.group; ++t) low = fminf(low, key(t)), high = fmaxf(high, key(t));
    const Quantiser<2> quantiser(low, high);
    for (uint32_t t = 0; t < shape_.group; t += 4) {
      const float x[4] = {key(t), key(t + 1), key(t + 2), key(t + 3)};
      to[channel * (shape_.group / 4) + t / 4] = static_cast<uint8_t>(word<2>(quantiser, x));
    }
    auto* const pairs = reinterpret_cast<__half*>(to + shape_.head_dim * (shape_.group / 4));
    pairs[channel] = quantiser.scale, pairs[shape_.head_dim + channel] = quantiser.zero;
  }

  // Unpacks channels [8 chunk, 8 chunk + 8) of a row.
  __device__ void unpack(const uint8_t* from, uint32_t chunk, float (&x)[8]) const {
    if constexpr (kFormat == Format::kFp8) {
      const uint2 raw = reinterpret_cast<const uint2*>(from)[chunk];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto pair = static_cast<__nv_fp8x2_storage_t>((i < 2 ? raw.x : raw.y) >> 16 * (i % 2));
        const __half2 halves = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
        x[2 * i] = __low2float(halves), x[2 * i + 1] = __high2float(halves);
      }
    } else if constexpr (kFormat == Format::kFp4) {
      const int exponent = int{from[shape_.head_dim / 2 + chunk / 2]} - kExponentBias;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        x[i] = ldexpf(e2m1_value(from[4 * chunk + i / 2] >> 4 * (i % 2) & 15), exponent);
    } else {
      constexpr uint32_t kBits = kFormat == Format::kInt4 ? 4 : 2;
      const auto* const pairs = reinterpret_cast<const __half*>(from + shape_.head_dim * kBits / 8);
      const uint32_t group = chunk * 8 / width();
      const float scale = __half2float(pairs[group]);
      const float zero = __half2float(pairs[bytes_.groups + group]);
      const uint32_t codes = kBits == 4 ? reinterpret_cast<const uint32_t*>(from)[chunk]
                                        : reinterpret_cast<const uint16_t*>(from)[chunk];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = value_of(codes >> kBits * i & ((1u << kBits) - 1), scale, zero);
    }
  }

  // Unpacks eight channels of the key of `kv_entry`, whose group is at `from`.
  __device__ void unpack_keys(const uint8_t* from, uint32_t kv_entry, uint32_t chunk, float (&x)[8]) const {
    const uint32_t token = pages_.slot(kv_entry) % shape_.group;
    const auto* const pairs = reinterpret_cast<const __half*>(from + shape_.head_dim * (shape_.group / 4));
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t channel = 8 * chunk + i;
      const uint32_t code = from[channel * (shape_.group / 4) + token / 4] >> 2 * (token % 4) & 3;
      x[i] = value_of(code, __half2float(pairs[channel]), __half2float(pairs[shape_.head_dim + channel]));
    }
  }

 private:
  static constexpr int kExponentBias = 127;  // E8M0

  __device__ size_t block(uint32_t kv_entry) const {
    return (size_t{pages_.page(kv_entry)} * heads_ + head_) * bytes_.page;
  }
  __device__ void load(const __nv_bfloat16* row, uint32_t slot, uint32_t chunk, float (&x)[8]) const {
    widen(*reinterpret_cast<const uint4*>(row + DequantizedPool::in_row(dequantized_, slot, chunk)), x);
  }
  template <int kBits, int kCount>
  __device__ static uint32_t word(const Quantiser<kBits>& quantiser, const float (&x)[kCount]) {
    uint32_t codes[kCount], out = 0;
    quantiser.codes(x, codes);
#pragma unroll
    for (int i = 0; i < kCount; ++i) out |= (codes[i] - Quantiser<kBits>::kRoundBits) << kBits * i;
    return out;
  }

  template <int kBits>
  __device__ void pack_group(const __nv_bfloat16* from, uint32_t slot, uint8_t* to, uint32_t group) const {
    const uint32_t chunks = width() / 8, first = group * chunks;
    float x[8], low = INFINITY, high = -INFINITY;
    for (uint32_t c = first; c < first + chunks; ++c) {
      load(from, slot, c, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    }
    const Quantiser<kBits> quantiser(low, high);
    for (uint32_t c = first; c < first + chunks; ++c) {
      load(from, slot, c, x);
      const uint32_t codes = word<kBits>(quantiser, x);
      if constexpr (kBits == 4) {
        reinterpret_cast<uint32_t*>(to)[c] = codes;
      } else {
        reinterpret_cast<uint16_t*>(to)[c] = static_cast<uint16_t>(codes);
      }
    }
    auto* const pairs = reinterpret_cast<__half*>(to + shape_.head_dim * kBits / 8);
    pairs[group] = quantiser.scale, pairs[bytes_.groups + group] = quantiser.zero;
  }

  __device__ void pack_fp4(const __nv_bfloat16* from, uint32_t slot, uint8_t* to, uint32_t block) const {
    float x[2][8], largest = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load(from, slot, 2 * block + half, x[half]);
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x[half][i]));
    }
    int exponent = -kExponentBias;
    if (largest != 0) {
      exponent = ilogbf(largest) - 2;  // 2^(e+2) <= largest < 2^(e+3)
      if (largest > ldexpf(6, exponent)) ++exponent;
      exponent = max(-kExponentBias, min(exponent, kExponentBias));
    }
    to[shape_.head_dim / 2 + block] = static_cast<uint8_t>(exponent + kExponentBias);
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const uint32_t even = e2m1_code(ldexpf(x[i / 8][i % 8], -exponent));
      const uint32_t odd = e2m1_code(ldexpf(x[i / 8][i % 8 + 1], -exponent));
      to[block * 8 + i / 2] = static_cast<uint8_t>(even | odd << 4);
    }
  }

  const PageShape shape_;
  const PackedBytes bytes_;
  const KvBlockShape dequantized_;
  const PagesOf pages_;
  const uint32_t heads_, head_;
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_QUANT_CONVERT_ROWS_CUH_
