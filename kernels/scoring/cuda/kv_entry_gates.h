// Gates of KV entries (score_gate.h: FastKVzip, TrimKV) from hidden rows in bf16; out [rows][heads] in fp32.
//
// All products of a layer with hidden rows are one matrix product in bf16 with fp32 sums, run by the caller
// (engine/cuda/device/matmul.h); the kernels here compute gates from its result. An fp32 weight is passed as
// the sum of kGateParts bf16 numbers (split_gate_weights): sixteen bits of it, so the omitted rest is below
// the rounding of the sums.
//
// Cost of the product: rows * kGateParts * outputs * hidden * 2 flops. Bound of the kernels, which read the
// products once: rows * kGateParts * outputs * 4 bytes at 4.69 TB/s.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_KV_ENTRY_GATES_H_
#define KVTWIN_KERNELS_SCORING_CUDA_KV_ENTRY_GATES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvtwin {

constexpr uint32_t kGateParts = 2;

// parts [kGateParts][count]: each is the residual of the previous ones, rounded to bf16.
void split_gate_weights(const float* weights, size_t count, __nv_bfloat16* parts);

// Products of one layer, by token: [kGateParts][outputs()]. Other shapes: FastKvzipGate.
struct FastKvzipArgs {
  const float* products = nullptr;  // [rows][kGateParts][outputs()]: with Wq's rows, then Wk's
  uint32_t rows = 0, heads = 0, group = 1;
  const float *bq = nullptr, *q_norm = nullptr, *k_norm = nullptr, *k_base = nullptr, *bias = nullptr;
  float norm_eps = 1e-6f;
  float* out = nullptr;

  __host__ __device__ uint32_t outputs() const { return heads * (group + 1) * 16; }
};
cudaError_t fastkvzip_gates(const FastKvzipArgs& args, cudaStream_t stream);

struct TrimKvArgs {
  const float* products = nullptr;  // [rows][kGateParts][width]: with W1's rows
  uint32_t rows = 0, heads = 0, width = 0;
  const float *b1 = nullptr, *w2 = nullptr, *b2 = nullptr;
  uint8_t activation = 0;  // GateActivation
  float* out = nullptr;    // log beta
};
cudaError_t trimkv_gates(const TrimKvArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SCORING_CUDA_KV_ENTRY_GATES_H_
