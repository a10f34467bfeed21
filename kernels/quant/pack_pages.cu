#include "kernels/quant/pack_keys.cuh"
#include "kernels/quant/pack_pages.h"

namespace kvtwin {
namespace {

using namespace device;

PackedLayout layout_of(const PackArgs& args) {
  PackedLayout layout;
  layout.page_bytes = static_cast<uint32_t>(page_bytes(args.format, args.shape));
  layout.row_bytes = token_bytes(args.format, args.shape);
  layout.values_at = layout.page_bytes - args.shape.page_tokens * layout.row_bytes;
  layout.block_rows = args.shape.page_tokens == 1 ? 1 : 8;
  layout.blocks_per_side = args.shape.page_tokens / layout.block_rows;
  layout.first_side = args.format == Format::kInt2 ? 1 : 0;
  layout.blocks = args.count * (2 - layout.first_side) * layout.blocks_per_side;
  layout.groups = channel_groups(args.shape);
  return layout;
}

constexpr uint32_t kWarps = kPackThreads / 32;  // warps per CTA
uint32_t ctas_for(uint32_t warps) { return (warps + kWarps - 1) / kWarps; }

template <int kBits, int kDim, int kWidth, bool kPack>
void launch_rows(const PackArgs& args, __nv_bfloat16* pool, uint8_t* bytes, cudaStream_t stream) {
  const PackedLayout layout = layout_of(args);
  rows_kernel<kBits, kDim, kWidth, kPack>
      <<<ctas_for(layout.blocks), kPackThreads, 0, stream>>>(args, layout, pool, bytes);
}

template <int kDim, int kGroup, bool kPack>
void launch_int2(const PackArgs& args, __nv_bfloat16* pool, uint8_t* bytes, cudaStream_t stream) {
  const PackedLayout layout = layout_of(args);
  const uint32_t keys = args.count * (args.shape.page_tokens / kGroup) * KeyPlace<kDim, kGroup>::kWarps;
  int2_kernel<kDim, kGroup, kPack>
      <<<ctas_for(keys + layout.blocks), kPackThreads, 0, stream>>>(args, layout, keys, pool, bytes);
}

template <int kDim, bool kPack>
void launch(const PackArgs& args, __nv_bfloat16* pool, uint8_t* bytes, cudaStream_t stream) {
  const uint32_t group = args.shape.group;
  if (args.format == Format::kFp8) return launch_rows<8, kDim, kDim, kPack>(args, pool, bytes, stream);
  if (args.format == Format::kInt4) {
    if (group == 32) return launch_rows<4, kDim, 32, kPack>(args, pool, bytes, stream);
    if (group == 64) return launch_rows<4, kDim, 64, kPack>(args, pool, bytes, stream);
    return launch_rows<4, kDim, kDim, kPack>(args, pool, bytes, stream);
  }
  if (group == 32) return launch_int2<kDim, 32, kPack>(args, pool, bytes, stream);
  if (group == 64) return launch_int2<kDim, 64, kPack>(args, pool, bytes, stream);
  launch_int2<kDim, 128, kPack>(args, pool, bytes, stream);
}

template <bool kPack>
cudaError_t run(const PackArgs& args, __nv_bfloat16* pool, uint8_t* bytes, cudaStream_t stream) {
  const PageShape& s = args.shape;
  const bool format =
      args.format == Format::kFp8 || args.format == Format::kInt4 || args.format == Format::kInt2;
  const bool groups = args.format == Format::kFp8 || s.group == 32 || s.group == 64 || s.group == 128;
  const bool pages = s.page_tokens == 1 || s.page_tokens % 8 == 0;
  if (!format || !groups || !pages || (s.head_dim != 64 && s.head_dim != 128) ||
      !page_shape_is_possible(s, args.format)) {
    return cudaErrorInvalidValue;
  }
  if (args.count == 0) return cudaSuccess;
  s.head_dim == 64 ? launch<64, kPack>(args, pool, bytes, stream)
                   : launch<128, kPack>(args, pool, bytes, stream);
  return cudaGetLastError();
}

}  // namespace

cudaError_t pack_pages(const PackArgs& args, const __nv_bfloat16* pool, uint8_t* packed,
                       cudaStream_t stream) {
  return run<true>(args, const_cast<__nv_bfloat16*>(pool), packed, stream);
}
cudaError_t unpack_pages(const PackArgs& args, const uint8_t* packed, __nv_bfloat16* pool,
                         cudaStream_t stream) {
  return run<false>(args, pool, const_cast<uint8_t*>(packed), stream);
}

}  // namespace kvtwin
