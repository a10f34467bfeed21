// Delays a stream on the device, for tests of the order between streams. One thread.

#ifndef KVTWIN_KERNELS_COMMON_DELAY_H_
#define KVTWIN_KERNELS_COMMON_DELAY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

// Work that is launched on `stream` after this call starts at least `nanoseconds` later. At most one second.
cudaError_t delay(uint64_t nanoseconds, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_COMMON_DELAY_H_
