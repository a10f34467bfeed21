#include <algorithm>

#include "kernels/quant/convert_entries.h"
#include "kernels/quant/convert_rows.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 128;

// CTAs (span, KV head, split of the span). Only the device knows the lengths of spans: with few spans each
// gets more CTAs, and those without work exit.
dim3 grid_of(const ConvertArgs& args) {
  constexpr uint32_t kWanted = 2112, kFractionsMax = 64;
  const uint32_t spans = args.count * args.kv_heads;
  return {args.count, args.kv_heads, std::clamp(kWanted / spans, 1u, kFractionsMax)};
}
__device__ uint32_t first_of_thread() { return blockIdx.z * kThreads + threadIdx.x; }
__device__ uint32_t step_of_threads() { return gridDim.z * kThreads; }

// Calls convert with side, KV entry and piece of a row.
template <class Convert>
__device__ __forceinline__ void each_piece(const KvEntrySpan& span, uint32_t pieces, uint32_t sides,
                                           const Convert& convert) {
  const uint32_t step = step_of_threads(), kv_entries = step / pieces, rest = step % pieces;
  for (uint32_t side = 0; side < 2; ++side) {
    if ((span.sides & sides & 1u << side) == 0) continue;
    uint32_t kv_entry = first_of_thread() / pieces, piece = first_of_thread() % pieces;
    while (kv_entry < span.count) {
      convert(side, kv_entry, piece);
      kv_entry += kv_entries, piece += rest;
      if (piece >= pieces) piece -= pieces, ++kv_entry;
    }
  }
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const __grid_constant__ ConvertArgs args, const __grid_constant__ PackedBytes bytes,
                const __nv_bfloat16* __restrict__ dequantized, uint8_t* __restrict__ packed) {
  const KvEntrySpan span = args.spans[blockIdx.x];
  const DequantizedPool from(args, blockIdx.y);
  const PackedEntries<kFormat> to(args, bytes, blockIdx.y);
  constexpr uint32_t kRowSides = kFormat == Format::kInt2 ? kValueSide : kBothSides;
  each_piece(span, args.shape.head_dim / to.width(), kRowSides,
             [&](uint32_t side, uint32_t i, uint32_t piece) {
               to.pack(dequantized + from.row(side, span.source + i), from.slot(span.source + i),
                       packed + to.row(side, span.target + i), piece);
             });
  if constexpr (kFormat == Format::kInt2) {
    if ((span.sides & kKeySide) == 0) return;
    const uint32_t dim = args.shape.head_dim, group = args.shape.group;
    for (uint32_t i = first_of_thread(); i < span.count / group * dim; i += step_of_threads()) {
      const uint32_t first = i / dim * group, channel = i % dim;
      to.pack_keys(dequantized, from, span.source + first, packed + to.key_group(span.target + first),
                   channel);
    }
  }
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(const __grid_constant__ ConvertArgs args, const __grid_constant__ PackedBytes bytes,
                  const uint8_t* __restrict__ packed, __nv_bfloat16* __restrict__ dequantized) {
  const KvEntrySpan span = args.spans[blockIdx.x];
  const PackedEntries<kFormat> from(args, bytes, blockIdx.y);
  const DequantizedPool to(args, blockIdx.y);
  each_piece(span, args.shape.head_dim / 8, kBothSides, [&](uint32_t side, uint32_t i, uint32_t chunk) {
    float x[8];
    if (kFormat == Format::kInt2 && side == 0) {
      from.unpack_keys(packed + from.key_group(span.source + i), span.source + i, chunk, x);
    } else {
      from.unpack(packed + from.row(side, span.source + i), chunk, x);
    }
    *to.chunk(dequantized, side, span.target + i, chunk) = low_bit(x);
  });
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ ConvertArgs args, const __nv_bfloat16* __restrict__ source,
                __nv_bfloat16* __restrict__ target) {
  const KvEntrySpan span = args.spans[blockIdx.x];
  const DequantizedPool pool(args, blockIdx.y);
  each_piece(span, args.shape.head_dim / 8, kBothSides, [&](uint32_t side, uint32_t i, uint32_t chunk) {
    *pool.chunk(target, side, span.target + i, chunk) =
        *pool.chunk(const_cast<__nv_bfloat16*>(source), side, span.source + i, chunk);
  });
}

bool possible(const ConvertArgs& args) {
  const uint32_t dim = args.shape.head_dim;
  return args.kv_heads > 0 && args.dequantized_page_tokens > 0 && dim > 0 && dim % 16 == 0 &&
         (dim <= 64 || dim % 64 == 0);
}
bool possible_packed(const ConvertArgs& args) {
  const bool grouped = args.format == Format::kInt4 || args.format == Format::kInt2;
  return possible(args) && args.format != Format::kBf16 && page_shape_is_possible(args.shape, args.format) &&
         (!grouped || args.shape.group % 8 == 0);
}

template <Format kFormat, bool kPack>
void launch(const ConvertArgs& args, __nv_bfloat16* dequantized, uint8_t* packed, cudaStream_t stream) {
  const dim3 grid = grid_of(args);
  if constexpr (kPack) {
    pack_kernel<kFormat><<<grid, kThreads, 0, stream>>>(args, PackedBytes::of(args), dequantized, packed);
  } else {
    unpack_kernel<kFormat><<<grid, kThreads, 0, stream>>>(args, PackedBytes::of(args), packed, dequantized);
  }
}

template <bool kPack>
cudaError_t run(const ConvertArgs& args, __nv_bfloat16* dequantized, uint8_t* packed, cudaStream_t stream) {
  if (!possible_packed(args)) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  switch (args.format) {
    case Format::kFp8:
      launch<Format::kFp8, kPack>(args, dequantized, packed, stream);
      break;
    case Format::kInt4:
      launch<Format::kInt4, kPack>(args, dequantized, packed, stream);
      break;
    case Format::kInt2:
      launch<Format::kInt2, kPack>(args, dequantized, packed, stream);
      break;
    case Format::kFp4:
      launch<Format::kFp4, kPack>(args, dequantized, packed, stream);
      break;
    case Format::kBf16:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t pack_entries(const ConvertArgs& args, const __nv_bfloat16* dequantized, uint8_t* packed,
                         cudaStream_t stream) {
  return run<true>(args, const_cast<__nv_bfloat16*>(dequantized), packed, stream);
}
cudaError_t unpack_entries(const ConvertArgs& args, const uint8_t* packed, __nv_bfloat16* dequantized,
                           cudaStream_t stream) {
  return run<false>(args, dequantized, const_cast<uint8_t*>(packed), stream);
}

cudaError_t copy_entries(const ConvertArgs& args, const __nv_bfloat16* source, __nv_bfloat16* target,
                         cudaStream_t stream) {
  if (!possible(args)) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  copy_kernel<<<grid_of(args), kThreads, 0, stream>>>(args, source, target);
  return cudaGetLastError();
}

}  // namespace kvtwin
