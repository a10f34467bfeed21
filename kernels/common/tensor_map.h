// Tensor maps: how the copy engine finds boxes of a tensor in device memory.

#ifndef KVTWIN_KERNELS_COMMON_TENSOR_MAP_H_
#define KVTWIN_KERNELS_COMMON_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

struct TensorAxis {
  uint64_t size = 0;
  uint64_t stride = 0;  // bytes, a multiple of 16; of the first axis: not read, its elements are adjacent
  uint32_t box = 0;     // elements of a box, at most 256
};

// Of bf16, 1 to 5 axes, the fastest first; 16-byte aligned. What a box has beyond the tensor arrives as
// zeros. `swizzle`: 16-byte chunk c of the box's 128-byte row r arrives at c ^ (r & 7); else rows arrive as
// they are. No copy may start before the driver's entry point is found: the first request looks for it.
cudaError_t encode_bf16_map(const void* data, const TensorAxis* axes, uint32_t count, bool swizzle,
                            CUtensorMap* map);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_COMMON_TENSOR_MAP_H_
