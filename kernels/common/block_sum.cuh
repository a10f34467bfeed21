// Prefix sums over the threads of a CTA, in ascending order of thread index.

#ifndef KVTWIN_KERNELS_COMMON_BLOCK_SUM_CUH_
#define KVTWIN_KERNELS_COMMON_BLOCK_SUM_CUH_

#include "kernels/common/cuda_primitives.cuh"

namespace kvtwin::device {

// Returns the sum over lower thread indices; *all is the sum over all threads. `sums`: [kWarps] in shared
// memory, reusable by successive calls without a barrier. Called by all threads of a CTA of kWarps * 32.
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
