#include "kernels/common/delay.h"

namespace kvtwin {
namespace {

__device__ uint64_t nanoseconds_now() {
  uint64_t out;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(out));
  return out;
}

__global__ void delay_kernel(uint64_t nanoseconds) {
  const uint64_t begin = nanoseconds_now();
  while (nanoseconds_now() - begin < nanoseconds) __nanosleep(500);
}

}  // namespace

cudaError_t delay(uint64_t nanoseconds, cudaStream_t stream) {
  if (nanoseconds > 1'000'000'000) return cudaErrorInvalidValue;
  delay_kernel<<<1, 1, 0, stream>>>(nanoseconds);
  return cudaGetLastError();
}

}  // namespace kvtwin
