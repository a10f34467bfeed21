// Converts rows of q, k, v from the matrix product to the inputs of attention in one kernel: q and k are
// normalised per head (Qwen3) and rotated, k and v are written to pages (kv_block.cuh). Definition:
// rms_norm_ref and rope_append_ref; bf16 in and out, fp32 between.
//
// Bound: each number read once and written once, 24 KB per row of Llama-3.1-8B, at 4.69 TB/s. Cosines and
// sines are computed once per row, not once per head.

#ifndef KVTWIN_KERNELS_CACHE_OPS_ROPE_APPEND_CUDA_H_
#define KVTWIN_KERNELS_CACHE_OPS_ROPE_APPEND_CUDA_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

constexpr uint32_t kNoBlock = 0xffffffffu;  // the KV entry is not written

// The slot of a row's KV entry: block of the pool, and slot in the block.
struct AppendSlot {
  uint32_t block = 0;
  uint32_t slot = 0;
};

struct RopeAppendArgs {
  const __nv_bfloat16* qkv = nullptr;     // [rows][query_heads + 2 * kv_heads][head_dim]
  const uint32_t* positions = nullptr;    // [rows]
  const AppendSlot* slots = nullptr;      // [rows][slots_per_row]
  const float* inv_freq = nullptr;        // [head_dim / 2]
  float rope_scale = 1;                   // factor of cosines and sines (YaRN's attention factor)
  const __nv_bfloat16* q_norm = nullptr;  // [head_dim]; null: no norm
  const __nv_bfloat16* k_norm = nullptr;
  float eps = 0;
  uint32_t rows = 0, query_heads = 0, kv_heads = 0;
  uint32_t head_dim = 128;     // 64, 128 or 256
  uint32_t page_tokens = 16;   // 1, or a multiple of 8
  uint32_t slots_per_row = 1;  // 1: KV head h goes to block + h; kv_heads: one slot per head (ragged)
  __nv_bfloat16* q = nullptr;  // [rows][query_heads][head_dim], rows q_stride apart; may overlap qkv
  uint32_t q_stride = 0;       // elements; a multiple of 8
  __nv_bfloat16* k = nullptr;  // rotated keys as dense rows, k_stride apart; null: not written
  uint32_t k_stride = 0;
  __nv_bfloat16* pool = nullptr;  // pool of this layer; null: no page is written
};

// All pointers are to device memory, aligned to 16 bytes. Returns cudaErrorInvalidValue for an unsupported
// shape.
cudaError_t rope_append(const RopeAppendArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_ROPE_APPEND_CUDA_H_
