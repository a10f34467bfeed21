// From a row of q, k, v as the matrix product leaves it to what attention reads, in one kernel: q and k are
// normed per head (Qwen3) and rotated, q goes to its own array, k and v into pages (kv_block.cuh).
// Defined by rms_norm_ref and rope_append_ref.
//
// Floor: bytes / 4.69 TB/s; a row of Llama-3.1-8B is 12 KB in and out each. Few rows: launch and latency.

#ifndef KVTWIN_KERNELS_QKV_APPEND_H_
#define KVTWIN_KERNELS_QKV_APPEND_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

// The position a row is rotated by, and where its KV goes.
struct QkvSlot {
  uint32_t position = 0;
  uint32_t page = 0;
  uint32_t slot = 0;
};

struct QkvAppendArgs {
  const __nv_bfloat16* qkv = nullptr;  // [rows][query_heads + 2 * kv_heads][head_dim]
  const QkvSlot* slots = nullptr;      // [rows]
  const float* inv_freq = nullptr;     // [head_dim / 2]
  float rope_scale = 1;
  const float* q_norm = nullptr;  // [head_dim]; null: none
  const float* k_norm = nullptr;
  float eps = 0;
  uint32_t rows = 0, query_heads = 0, kv_heads = 0;
  uint32_t head_dim = 0;  // even, at most 256
  uint32_t page_tokens = 0;
  __nv_bfloat16* q = nullptr;     // [rows][query_heads][head_dim]
  __nv_bfloat16* pool = nullptr;  // of this layer: block (page, KV head) is page * kv_heads + head
};
cudaError_t qkv_append(const QkvAppendArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_QKV_APPEND_H_
