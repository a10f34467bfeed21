// Tensor maps: descriptors by which asynchronous copies address boxes of a tensor in device memory.

#ifndef KVTWIN_KERNELS_COMMON_TENSOR_MAP_H_
#define KVTWIN_KERNELS_COMMON_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

struct TensorAxis {
  uint64_t size = 0;
  uint64_t stride = 0;  // bytes, a multiple of 16; ignored for the first axis, which is contiguous
  uint32_t box = 0;     // elements of a box, at most 256
};

// Encodes a map of a bf16 tensor of 1 to 5 axes, the fastest first; data is 16-byte aligned. Elements of a
// box outside the tensor are filled with zeros. `swizzle`: the 16-byte chunk c of the box's 128-byte row r is
// stored as chunk c ^ (r & 7). The first call looks up the driver's entry point.
cudaError_t encode_bf16_map(const void* data, const TensorAxis* axes, uint32_t count, bool swizzle,
                            CUtensorMap* map);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_COMMON_TENSOR_MAP_H_
