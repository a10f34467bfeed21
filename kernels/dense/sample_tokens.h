// kernels/dense/sample.h on CUDA: the same token, with bit-equal weights.
//
// One CTA per row reads its logits up to eleven times, after the first time from L2. Bound: 4 bytes per logit
// at 4.69 TB/s once, and ten more times at the L2 bandwidth of one SM; about 50 us for rows of 128k.

#ifndef KVTWIN_KERNELS_DENSE_SAMPLE_TOKENS_H_
#define KVTWIN_KERNELS_DENSE_SAMPLE_TOKENS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/dense/sample.h"

namespace kvtwin {

struct SampleArgs {
  const float* logits = nullptr;    // [rows][count]
  const uint64_t* draws = nullptr;  // [rows]
  uint32_t rows = 0, count = 0;     // 0 < count <= 2^18
  kernels::SampleSpec spec;
  uint32_t* out = nullptr;  // [rows]
};
cudaError_t sample_tokens(const SampleArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_DENSE_SAMPLE_TOKENS_H_
