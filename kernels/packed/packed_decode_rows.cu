// Decode attention over the byte layouts of docs/design/methods/triaxialkv.md#bytes (packed_decode.h).

#include "kernels/packed/packed_decode.h"
#include "kernels/packed/packed_rows.cuh"
#include "kernels/packed/packed_worker.cuh"

namespace kvtwin::device {
namespace {

template <int kScaleGroup>
cudaError_t launch(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream) {
  return shape.head_dim == 128 ? launch_family<RowsFamily<128, kScaleGroup>>(shape, args, stream)
                               : launch_family<RowsFamily<64, kScaleGroup>>(shape, args, stream);
}

}  // namespace

// REQUIRES: a supported shape of kRows.
cudaError_t launch_rows(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream) {
  return shape.scale_group == 32   ? launch<32>(shape, args, stream)
         : shape.scale_group == 64 ? launch<64>(shape, args, stream)
                                   : launch<128>(shape, args, stream);
}

}  // namespace kvtwin::device
