#include <cudaTypedefs.h>

#include "kernels/common/tensor_map.h"

namespace kvtwin {
namespace {

// The driver is not linked, so that programs start on machines without one.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
  const bool right = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return right ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found) : nullptr;
}

}  // namespace

cudaError_t encode_bf16_map(const void* data, const TensorAxis* axes, uint32_t count, bool swizzle,
                            CUtensorMap* map) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = encoder();
  if (encode == nullptr) return cudaErrorSymbolNotFound;
  if (count == 0 || count > 5) return cudaErrorInvalidValue;
  cuuint64_t sizes[5], strides[5];
  cuuint32_t box[5], steps[5];
  for (uint32_t i = 0; i < count; ++i) {
    sizes[i] = axes[i].size, box[i] = axes[i].box, steps[i] = 1;
    if (i > 0) strides[i - 1] = axes[i].stride;
  }
  const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, count, const_cast<void*>(data), sizes,
                                 strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace kvtwin
