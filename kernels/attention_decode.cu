#include "kernels/attention_decode_kernel.cuh"

namespace kvtwin {
namespace {

template <int kDim, bool kPage1>
cudaError_t launch(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream) {
  return shape.group <= 4
             ? device::launch_decode<device::DecodeGeometry<kDim, 4, kPage1>>(shape, args, stream)
             : device::launch_decode<device::DecodeGeometry<kDim, 8, kPage1>>(shape, args, stream);
}

}  // namespace

size_t decode_workspace_bytes(const DecodeShape& shape) {
  return device::parts_offset(shape.sequences) +
         size_t{2} * shape.ctas * kDecodeGroupMax * (shape.head_dim + 2) * sizeof(float);
}

cudaError_t attention_decode(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream) {
  const bool page_right = shape.page_tokens == 1 || shape.page_tokens % kDecodeBlockTokens == 0;
  if (!page_right || shape.page_tokens == 0 || shape.group == 0 || shape.group > kDecodeGroupMax ||
      (shape.head_dim != 64 && shape.head_dim != 128)) {
    return cudaErrorInvalidValue;
  }
  if (shape.sequences == 0) return cudaSuccess;
  if (shape.head_dim == 128) {
    return shape.page_tokens == 1 ? launch<128, true>(shape, args, stream)
                                  : launch<128, false>(shape, args, stream);
  }
  return shape.page_tokens == 1 ? launch<64, true>(shape, args, stream)
                                : launch<64, false>(shape, args, stream);
}

}  // namespace kvtwin
