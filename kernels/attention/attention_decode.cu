#include "kernels/attention/attention_decode_kernel.cuh"

namespace kvtwin {
namespace {

using device::Tables;

template <int kDim, Tables kTables>
cudaError_t launch(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream) {
  return shape.group <= 4
             ? device::launch_decode<device::DecodeGeometry<kDim, 4, kTables>>(shape, args, stream)
             : device::launch_decode<device::DecodeGeometry<kDim, 8, kTables>>(shape, args, stream);
}

template <int kDim>
cudaError_t launch(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream) {
  if (shape.page_tokens == 1) return launch<kDim, Tables::kSingle>(shape, args, stream);
  return shape.listed ? launch<kDim, Tables::kListed>(shape, args, stream)
                      : launch<kDim, Tables::kPages>(shape, args, stream);
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
  return shape.head_dim == 128 ? launch<128>(shape, args, stream) : launch<64>(shape, args, stream);
}

}  // namespace kvtwin
