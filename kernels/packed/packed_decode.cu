// Decode attention over packed KV (packed_decode.h), by layout; the kernel is packed_worker.cuh's.

#include "kernels/packed/packed_decode.h"

namespace kvtwin {

namespace device {
// in packed_decode_rows.cu
cudaError_t launch_rows(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream);
// in packed_decode_low_bit.cu
cudaError_t launch_low_bit(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream);
}  // namespace device

cudaError_t packed_decode(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream) {
  if (!packed_shape_is_possible(shape)) return cudaErrorInvalidValue;
  if (shape.sequences == 0) return cudaSuccess;
  if (shape.layout == PackedLayout::kRows) return device::launch_rows(shape, args, stream);
  return device::launch_low_bit(shape, args, stream);
}

}  // namespace kvtwin
