// Sums over the threads of a CTA in the order of their numbers.

#ifndef KVTWIN_KERNELS_COMMON_BLOCK_SUM_CUH_
#define KVTWIN_KERNELS_COMMON_BLOCK_SUM_CUH_

#include "kernels/common/cuda_primitives.cuh"

namespace kvtwin::device {

// The sum over the threads before this one; *all: over all of them. `sums`: [kWarps] in shared memory, which
// may hold the last request's. All threads of a CTA of kWarps * 32 together.
template <uint32_t kWarps, typename T>
__device__ T sum_before(T own, T* sums, T* all) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = own;
#pragma unroll
  for (uint32_t by = 1; by < 32; by *= 2) {
    const T other = __shfl_up_sync(kAllLanes, sum, by);
    if (lane >= by) sum += other;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  T before = sum - own, total = 0;
  for (uint32_t w = 0; w < kWarps; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  *all = total;
  return before;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_COMMON_BLOCK_SUM_CUH_
