// Rows of one token (a key's or a value's channels), 16 channels per thread: fp8, int4, and int2's values.
// With eight per thread, scale and zero of a group would cost as much as the codes.

#ifndef KVTWIN_KERNELS_QUANT_PACK_ROWS_CUH_
#define KVTWIN_KERNELS_QUANT_PACK_ROWS_CUH_

#include <cuda_fp8.h>

#include "kernels/common/bf16_chunk.cuh"
#include "kernels/common/kv_block.cuh"
#include "kernels/quant/pack_pages.h"
#include "kernels/quant/quantise.cuh"

namespace kvtwin::device {

// Layout of the packed pages. A warp converts `block_rows` rows of one side of one page.
struct PackedLayout {
  uint32_t page_bytes = 0, values_at = 0, row_bytes = 0;
  uint32_t block_rows = 0;       // 8, or 1 if a page is one token
  uint32_t blocks_per_side = 0;  // of a page
  uint32_t blocks = 0;           // of all pages
  uint32_t first_side = 0;       // 1: values only (int2)
  uint32_t groups = 0;           // of a row
};

constexpr uint32_t kPackThreads = 128;

// A thread's piece of a row.
struct Piece {
  uint4 chunks[2];

  __device__ __forceinline__ void widen_all(float (&x)[16]) const {
    float half[8];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      widen(chunks[c], half);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[8 * c + i] = half[i];
    }
  }
};

// The codes of 32 / kBits numbers in one word, the first one lowest.
template <int kBits>
__device__ __forceinline__ uint32_t code_word(const uint32_t* codes) {
  uint32_t word = 0, rounding = 0;
#pragma unroll
  for (int i = 32 / kBits - 1; i >= 0; --i) {
    word = (word << kBits) + codes[i];
    rounding = (rounding << kBits) + Quantiser<kBits>::kRoundBits;
  }
  return word - rounding;
}

// {least, -largest} over a piece and the pieces of kLanes adjacent lanes.
template <int kLanes>
__device__ __forceinline__ float2 bounds_of(const Piece& piece) {
  const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(piece.chunks);
  __nv_bfloat162 low = pairs[0], high = pairs[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) low = __hmin2(low, pairs[i]), high = __hmax2(high, pairs[i]);
  __nv_bfloat162 both(__hmin(low.x, low.y), __hneg(__hmax(high.x, high.y)));
#pragma unroll
  for (int by = kLanes / 2; by > 0; by /= 2) both = __hmin2(both, __shfl_xor_sync(kAllLanes, both, by));
  return __bfloat1622float2(both);
}

// Stores two words. kAligned: to 8 bytes, which holds for a row of int4 with an even number of groups.
template <bool kAligned>
__device__ __forceinline__ void store_pair(uint8_t* at, uint32_t first, uint32_t second) {
  if constexpr (kAligned) {
    *reinterpret_cast<uint2*>(at) = {first, second};
  } else {
    reinterpret_cast<uint32_t*>(at)[0] = first, reinterpret_cast<uint32_t*>(at)[1] = second;
  }
}

// `lane`: of the row's kDim / 16. kWidth: channels of a group. Called by all lanes of the warp.
template <int kBits, int kDim, int kWidth>
__device__ __forceinline__ void quantise_row(const Piece& piece, uint8_t* row, uint32_t groups, uint32_t lane,
                                             bool real) {
  const float2 bounds = bounds_of<kWidth / 16>(piece);
  if (!real) return;
  const Quantiser<kBits> quantiser(bounds.x, -bounds.y);
  float x[16];
  uint32_t codes[16];
  piece.widen_all(x);
  quantiser.codes(x, codes);
  if constexpr (kBits == 4) {
    store_pair<kDim / kWidth % 2 == 0>(row + 8 * lane, code_word<4>(codes), code_word<4>(codes + 8));
  } else {
    reinterpret_cast<uint32_t*>(row)[lane] = code_word<2>(codes);
  }
  if (lane % (kWidth / 16) != 0) return;
  auto* const pairs = reinterpret_cast<__half*>(row + kDim * kBits / 8);
  pairs[lane / (kWidth / 16)] = quantiser.scale;
  pairs[groups + lane / (kWidth / 16)] = quantiser.zero;
}

__device__ __forceinline__ void low_bit_row(const Piece& piece, uint8_t* row, uint32_t lane) {
  float x[16];
  uint32_t words[4];
  piece.widen_all(x);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2({x[4 * i], x[4 * i + 1]}, __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2({x[4 * i + 2], x[4 * i + 3]}, __NV_SATFINITE, __NV_E4M3);
    words[i] = low | high << 16;
  }
  reinterpret_cast<uint4*>(row)[lane] = {words[0], words[1], words[2], words[3]};
}

// Unpacks eight channels; `lane`: of the row's kDim / 8.
template <int kBits, int kDim, int kWidth>
__device__ __forceinline__ uint4 widen_row(const uint8_t* row, uint32_t groups, uint32_t lane) {
  float x[8];
  if constexpr (kBits == 8) {
    const uint2 raw = __ldcs(reinterpret_cast<const uint2*>(row) + lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>((i < 2 ? raw.x : raw.y) >> 16 * (i % 2));
      const __half2 halves = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
      x[2 * i] = __low2float(halves), x[2 * i + 1] = __high2float(halves);
    }
  } else {
    const uint32_t word = kBits == 4 ? __ldcs(reinterpret_cast<const uint32_t*>(row) + lane)
                                     : __ldcs(reinterpret_cast<const uint16_t*>(row) + lane);
    const auto* const pairs = reinterpret_cast<const __half*>(row + kDim * kBits / 8);
    const float scale = __half2float(__ldcs(pairs + lane / (kWidth / 8)));
    const float zero = __half2float(__ldcs(pairs + groups + lane / (kWidth / 8)));
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = value_of(word >> kBits * i & ((1u << kBits) - 1), scale, zero);
  }
  return low_bit(x);
}

// Location of the first row of a block of rows in both pools.
template <int kDim>
struct RowBlock {
  size_t wide = 0;    // in bf16 numbers
  size_t packed = 0;  // in bytes

  __device__ RowBlock(const PackArgs& args, const PackedLayout& layout, uint32_t block, bool packing) {
    const uint32_t side_block = block % layout.blocks_per_side, side_of_all = block / layout.blocks_per_side;
    const uint32_t sides = 2 - layout.first_side, side = side_of_all % sides + layout.first_side;
    const uint2 pair = __ldg(reinterpret_cast<const uint2*>(args.pages) + side_of_all / sides);
    const uint32_t slot = side_block * layout.block_rows;
    const size_t row = (size_t{packing ? pair.x : pair.y} * 2 + side) * args.shape.page_tokens + slot;
    wide = row * kDim;
    packed = size_t{packing ? pair.y : pair.x} * layout.page_bytes + side * layout.values_at +
             slot * layout.row_bytes;
  }
};

// int4, eight rows: assembled in shared memory and written 16 bytes per lane. Codes, scales and zeros of a
// row end inside sectors; written separately, they would access each sector of L2 several times, and L2
// bounds int4.
template <int kDim, int kWidth, uint32_t kSteps>
__device__ __forceinline__ void store_block(const Piece (&pieces)[kSteps], uint32_t lane, uint32_t first,
                                            uint8_t* to) {
  constexpr uint32_t kGroups = kDim / kWidth, kRowBytes = kDim / 2 + kGroups * kScaleZeroBytes;
  constexpr uint32_t kChunks = 8 * kRowBytes / sizeof(uint4);
  __shared__ uint4 staged[kPackThreads / 32][kChunks];
  uint4* const mine = staged[threadIdx.x / 32];
#pragma unroll
  for (uint32_t i = 0; i < kSteps; ++i) {
    const uint32_t row = first + i * (8 / kSteps);
    quantise_row<4, kDim, kWidth>(pieces[i], reinterpret_cast<uint8_t*>(mine) + row * kRowBytes, kGroups,
                                  lane, true);
  }
  __syncwarp();
#pragma unroll
  for (uint32_t i = threadIdx.x % 32; i < kChunks; i += 32) reinterpret_cast<uint4*>(to)[i] = mine[i];
}

// One warp packs one block of rows, all of them in flight. kBits 8: fp8. Rows are swizzled (kv_block.cuh); a
// block's first slot is a multiple of 8.
template <int kBits, int kDim, int kWidth>
__device__ void pack_rows(const PackedLayout& layout, const RowBlock<kDim>& at, const __nv_bfloat16* pool,
                          uint8_t* bytes) {
  constexpr uint32_t kLanes = kDim / 16, kAtOnce = 32 / kLanes, kSteps = 8 / kAtOnce;
  const uint32_t lane = threadIdx.x % kLanes, first = threadIdx.x % 32 / kLanes;
  const auto* const wide = reinterpret_cast<const uint4*>(pool + at.wide);
  Piece pieces[kSteps];
#pragma unroll
  for (uint32_t i = 0; i < kSteps; ++i) {
    const uint32_t row = min(first + i * kAtOnce, layout.block_rows - 1);
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      pieces[i].chunks[c] = load_once(wide + row * (kDim / 8) + ((2 * lane + c) ^ row));
    }
  }
  if constexpr (kBits == 4) {
    if (layout.block_rows == 8) return store_block<kDim, kWidth>(pieces, lane, first, bytes + at.packed);
  }
#pragma unroll
  for (uint32_t i = 0; i < kSteps; ++i) {
    const uint32_t row = first + i * kAtOnce;
    uint8_t* const to = bytes + at.packed + row * layout.row_bytes;
    if constexpr (kBits == 8) {
      if (row < layout.block_rows) low_bit_row(pieces[i], to, lane);
    } else {
      quantise_row<kBits, kDim, kWidth>(pieces[i], to, layout.groups, lane, row < layout.block_rows);
    }
  }
}

template <int kBits, int kDim, int kWidth>
__device__ void unpack_rows(const PackedLayout& layout, const RowBlock<kDim>& at, __nv_bfloat16* pool,
                            const uint8_t* bytes) {
  constexpr uint32_t kLanes = kDim / 8, kAtOnce = 32 / kLanes, kSteps = 8 / kAtOnce;
  const uint32_t lane = threadIdx.x % kLanes, first = threadIdx.x % 32 / kLanes;
  auto* const wide = reinterpret_cast<uint4*>(pool + at.wide);
  uint4 chunks[kSteps];
#pragma unroll
  for (uint32_t i = 0; i < kSteps; ++i) {
    const uint32_t row = min(first + i * kAtOnce, layout.block_rows - 1);
    chunks[i] =
        widen_row<kBits, kDim, kWidth>(bytes + at.packed + row * layout.row_bytes, layout.groups, lane);
  }
#pragma unroll
  for (uint32_t i = 0; i < kSteps; ++i) {
    const uint32_t row = first + i * kAtOnce;
    if (row < layout.block_rows) wide[row * kLanes + (lane ^ row)] = chunks[i];
  }
}

template <int kBits, int kDim, int kWidth, bool kPack>
__device__ void convert_rows(const PackArgs& args, const PackedLayout& layout, uint32_t block,
                             __nv_bfloat16* pool, uint8_t* bytes) {
  if (block >= layout.blocks) return;
  const RowBlock<kDim> at(args, layout, block, kPack);
  if constexpr (kPack) {
    pack_rows<kBits, kDim, kWidth>(layout, at, pool, bytes);
  } else {
    unpack_rows<kBits, kDim, kWidth>(layout, at, pool, bytes);
  }
}

template <int kBits, int kDim, int kWidth, bool kPack>
__global__ void __launch_bounds__(kPackThreads)
    rows_kernel(const __grid_constant__ PackArgs args, const __grid_constant__ PackedLayout layout,
                __nv_bfloat16* pool, uint8_t* bytes) {
  const uint32_t block = blockIdx.x * (kPackThreads / 32) + threadIdx.x / 32;
  convert_rows<kBits, kDim, kWidth, kPack>(args, layout, block, pool, bytes);
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_QUANT_PACK_ROWS_CUH_
