// Rows of one token (a key's or a value's channels), eight channels a thread: fp8, int4, and int2's values.

#ifndef KVTWIN_KERNELS_PACK_ROWS_CUH_
#define KVTWIN_KERNELS_PACK_ROWS_CUH_

#include <cuda_fp8.h>

#include "kernels/bf16_chunk.cuh"
#include "kernels/kv_block.cuh"
#include "kernels/pack_pages.h"
#include "kernels/quantise.cuh"

namespace kvtwin::device {

// What all threads know of the pages.
struct PackedLayout {
  uint32_t page_bytes = 0, values_at = 0, row_bytes = 0;
  uint32_t rows = 0;        // of a page that are rows of one token
  uint32_t first_side = 0;  // 1: values alone (int2)
  uint32_t groups = 0;      // of a row
};

template <int kBits>
__device__ __forceinline__ void store_codes(uint8_t* at, const uint32_t (&codes)[8]) {
  uint32_t word = 0, rounding = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    word = (word << kBits) + codes[i];
    rounding = (rounding << kBits) + Quantiser<kBits>::kRoundBits;
  }
  word -= rounding;
  if constexpr (kBits == 4) {
    *reinterpret_cast<uint32_t*>(at) = word;
  } else {
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(word);
  }
}

// `lane`: of the row's kDim / 8. kWidth: channels of a group. All lanes of the warp.
template <int kBits, int kDim, int kWidth>
__device__ __forceinline__ void quantise_row(const uint4& chunk, uint8_t* row, uint32_t groups, uint32_t lane,
                                             bool real) {
  float x[8];
  widen(chunk, x);
  float low = x[0], high = x[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
#pragma unroll
  for (int by = kWidth / 16; by > 0; by /= 2) {
    low = fminf(low, __shfl_xor_sync(kAllLanes, low, by));
    high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, by));
  }
  if (!real) return;
  const Quantiser<kBits> quantiser(low, high);
  uint32_t codes[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) codes[i] = quantiser.code(x[i]);
  store_codes<kBits>(row + lane * kBits, codes);
  if (lane % (kWidth / 8) != 0) return;
  auto* const pairs = reinterpret_cast<__half*>(row + kDim * kBits / 8);
  pairs[lane / (kWidth / 8)] = quantiser.scale;
  pairs[groups + lane / (kWidth / 8)] = quantiser.zero;
}

__device__ __forceinline__ void narrow_row(const uint4& chunk, uint8_t* row, uint32_t lane) {
  float x[8];
  widen(chunk, x);
  uint16_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = __nv_cvt_float2_to_fp8x2({x[2 * i], x[2 * i + 1]}, __NV_SATFINITE, __NV_E4M3);
  }
  reinterpret_cast<uint2*>(row)[lane] = {pairs[0] | uint32_t{pairs[1]} << 16,
                                         pairs[2] | uint32_t{pairs[3]} << 16};
}

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
  return narrow(x);
}

// Row r of the rows of all pages: where it is, in either form.
template <int kDim>
struct RowPlace {
  size_t wide = 0;    // in bf16 numbers, of this lane's chunk
  size_t packed = 0;  // in bytes, of the row

  __device__ RowPlace(const PackArgs& args, const PackedLayout& layout, uint32_t row, uint32_t lane,
                      bool packing) {
    const KvBlockShape block{args.shape.page_tokens, kDim};
    const uint2 pair = __ldg(reinterpret_cast<const uint2*>(args.pages) + row / layout.rows);
    const uint32_t in_page = row % layout.rows + layout.first_side * args.shape.page_tokens;
    const uint32_t side = in_page / args.shape.page_tokens, slot = in_page % args.shape.page_tokens;
    wide = (packing ? pair.x : pair.y) * block.numbers() + side * (block.numbers() / 2) +
           block.at(slot, lane * 8);
    packed = size_t{packing ? pair.y : pair.x} * layout.page_bytes + side * layout.values_at +
             slot * layout.row_bytes;
  }
};

constexpr uint32_t kPackThreads = 256;
constexpr uint32_t kPackRows = 4;  // that a thread has in flight

// kBits 8: fp8. kPack: from bf16, else to it.
template <int kBits, int kDim, int kWidth, bool kPack>
__global__ void __launch_bounds__(kPackThreads)
    rows_kernel(const __grid_constant__ PackArgs args, const __grid_constant__ PackedLayout layout,
                __nv_bfloat16* pool, uint8_t* bytes) {
  constexpr uint32_t kLanes = kDim / 8, kRowsOfCta = kPackThreads / kLanes;
  const uint32_t lane = threadIdx.x % kLanes, rows = args.count * layout.rows;
  const uint32_t first = blockIdx.x * (kRowsOfCta * kPackRows) + threadIdx.x / kLanes;
  uint4 chunks[kPackRows];
  size_t targets[kPackRows];
#pragma unroll
  for (uint32_t i = 0; i < kPackRows; ++i) {
    const uint32_t row = min(first + i * kRowsOfCta, rows - 1);
    const RowPlace<kDim> place(args, layout, row, lane, kPack);
    targets[i] = kPack ? place.packed : place.wide;
    chunks[i] = kPack ? load_once(pool + place.wide)
                      : widen_row<kBits, kDim, kWidth>(bytes + place.packed, layout.groups, lane);
  }
#pragma unroll
  for (uint32_t i = 0; i < kPackRows; ++i) {
    const bool real = first + i * kRowsOfCta < rows;
    if constexpr (!kPack) {
      if (real) *reinterpret_cast<uint4*>(pool + targets[i]) = chunks[i];
    } else if constexpr (kBits == 8) {
      if (real) narrow_row(chunks[i], bytes + targets[i], lane);
    } else {
      quantise_row<kBits, kDim, kWidth>(chunks[i], bytes + targets[i], layout.groups, lane, real);
    }
  }
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACK_ROWS_CUH_
