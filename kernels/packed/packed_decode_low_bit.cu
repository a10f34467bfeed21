// Decode attention over fp4 rows and over KIVI's KV entries (packed_decode.h).

#include "kernels/packed/packed_decode.h"
#include "kernels/packed/packed_rows_fp4.cuh"
#include "kernels/packed/packed_rows_kivi.cuh"
#include "kernels/packed/packed_worker.cuh"

namespace kvtwin::device {
namespace {

template <int kDim>
cudaError_t launch_kivi(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream) {
  return shape.scale_group == 32   ? launch_family<KiviFamily<kDim, 32>>(shape, args, stream)
         : shape.scale_group == 64 ? launch_family<KiviFamily<kDim, 64>>(shape, args, stream)
                                   : launch_family<KiviFamily<kDim, 128>>(shape, args, stream);
}

}  // namespace

// REQUIRES: a supported shape of kFp4 or kKivi.
cudaError_t launch_low_bit(const PackedDecodeShape& shape, const PackedDecodeArgs& args,
                           cudaStream_t stream) {
  if (shape.layout == PackedLayout::kFp4)
    return shape.head_dim == 128 ? launch_family<Fp4Family<128>>(shape, args, stream)
                                 : launch_family<Fp4Family<64>>(shape, args, stream);
  return shape.head_dim == 128 ? launch_kivi<128>(shape, args, stream) : launch_kivi<64>(shape, args, stream);
}

}  // namespace kvtwin::device
