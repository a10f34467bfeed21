// The small kernels of a forward pass between its matrix products. Definitions: rms_norm_ref, silu_mul_ref,
// argmax_ref. The residual stream x is fp32; inputs of matrix products are bf16.
//
// Bound by bytes / 4.69 TB/s for many rows, and by about 3 us of launch and latency for few; a decode step of
// 32 rows is in the latter range. All pointers are to device memory; each function launches one kernel.

#ifndef KVTWIN_KERNELS_DENSE_DENSE_CUDA_H_
#define KVTWIN_KERNELS_DENSE_DENSE_CUDA_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

// x[r] = table[tokens[r]].
struct EmbedArgs {
  const __nv_bfloat16* table = nullptr;  // [vocab][width]
  const uint32_t* tokens = nullptr;      // [rows]
  uint32_t rows = 0, width = 0;
  float* x = nullptr;  // [rows][width]
};
cudaError_t embed(const EmbedArgs& args, cudaStream_t stream);

// out[r] = norm(x[pick[r]]) * weight.
struct RmsNormArgs {
  const float* x = nullptr;        // [][width]
  const uint32_t* pick = nullptr;  // [rows]; null: row r is row r
  const float* weight = nullptr;   // [width]
  float eps = 0;
  uint32_t rows = 0, width = 0;
  __nv_bfloat16* out = nullptr;  // [rows][width]
};
cudaError_t rms_norm(const RmsNormArgs& args, cudaStream_t stream);

// out[r][i] = silu(gate_up[r][i]) * gate_up[r][width + i].
struct SiluMulArgs {
  const __nv_bfloat16* gate_up = nullptr;  // [rows][2 * width]
  uint32_t rows = 0, width = 0;
  __nv_bfloat16* out = nullptr;  // [rows][width]
};
cudaError_t silu_mul(const SiluMulArgs& args, cudaStream_t stream);

// x[r] += bias.
struct AddBiasArgs {
  const float* bias = nullptr;  // [width]
  uint32_t rows = 0, width = 0;
  float* x = nullptr;  // [rows][width]
};
cudaError_t add_bias(const AddBiasArgs& args, cudaStream_t stream);

// The index of each row's largest logit, as in argmax_ref.
struct ArgmaxArgs {
  const float* logits = nullptr;  // [rows][count]
  uint32_t rows = 0, count = 0;
  uint32_t* out = nullptr;  // [rows]
};
cudaError_t argmax(const ArgmaxArgs& args, cudaStream_t stream);

// Elements [0, count) of a tensor of random weights: the bytes of draw_bf16 in models/weights/weights.h.
struct DrawArgs {
  uint64_t key = 0;
  float mean = 0, gain = 1;
  uint64_t count = 0;
  __nv_bfloat16* out = nullptr;
};
cudaError_t draw_weights(const DrawArgs& args, cudaStream_t stream);

// Returns cudaErrorNoKernelImageForDevice if this build has no code for the current device.
cudaError_t kernels_run_here();

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_DENSE_DENSE_CUDA_H_
