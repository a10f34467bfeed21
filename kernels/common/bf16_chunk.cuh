// A chunk of eight bf16 numbers: the 16 bytes that a thread loads or stores at once.

#ifndef KVTWIN_KERNELS_COMMON_BF16_CHUNK_CUH_
#define KVTWIN_KERNELS_COMMON_BF16_CHUNK_CUH_

#include "kernels/common/cuda_primitives.cuh"

namespace kvtwin::device {

__device__ __forceinline__ void widen(const uint4& chunk, float (&x)[8]) {
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
__device__ __forceinline__ uint4 low_bit(const float (&x)[8]) {
  return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])};
}

// A streaming load for data that is read once.
__device__ __forceinline__ uint4 load_once(const void* at) { return __ldcs(static_cast<const uint4*>(at)); }

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_COMMON_BF16_CHUNK_CUH_
