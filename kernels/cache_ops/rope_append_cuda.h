// From a row of q, k, v as the matrix product leaves it to what attention reads, in one kernel: q and k are
// normed per head (Qwen3) and rotated, k and v go into pages (kv_block.cuh). Defined by rms_norm_ref and
// rope_append_ref; bf16 in and out, fp32 between.
//
// Floor: each number read once and written once, 24 KB for a row of Llama-3.1-8B, at 4.69 TB/s. Cosines and
// sines are computed once for a row, not once for a head.

#ifndef KVTWIN_KERNELS_CACHE_OPS_ROPE_APPEND_CUDA_H_
#define KVTWIN_KERNELS_CACHE_OPS_ROPE_APPEND_CUDA_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

constexpr uint32_t kNoBlock = 0xffffffffu;  // the KV entry is not kept

// Where the KV of a row goes: block of the pool, and the slot in it.
struct AppendSlot {
  uint32_t block = 0;
  uint32_t slot = 0;
};

struct RopeAppendArgs {
  const __nv_bfloat16* qkv = nullptr;     // [rows][query_heads + 2 * kv_heads][head_dim]
  const uint32_t* positions = nullptr;    // [rows]
  const AppendSlot* slots = nullptr;      // [rows][slots_per_row]
  const float* inv_freq = nullptr;        // [head_dim / 2]
  float rope_scale = 1;                   // of cosines and sines (YaRN's attention factor)
  const __nv_bfloat16* q_norm = nullptr;  // [head_dim]; null: none
  const __nv_bfloat16* k_norm = nullptr;
  float eps = 0;
  uint32_t rows = 0, query_heads = 0, kv_heads = 0;
  uint32_t head_dim = 128;     // 64, 128 or 256
  uint32_t page_tokens = 16;   // 1, or a multiple of 8
  uint32_t slots_per_row = 1;  // 1: KV head h goes to block + h; kv_heads: each head to its own (ragged)
  __nv_bfloat16* q = nullptr;  // [rows][query_heads][head_dim], rows q_stride apart; may lie where qkv does
  uint32_t q_stride = 0;       // elements; a multiple of 8
  __nv_bfloat16* k = nullptr;  // rotated keys next to the pages, rows k_stride apart; null: not wanted
  uint32_t k_stride = 0;
  __nv_bfloat16* pool = nullptr;  // of this layer; null: nothing is written to pages
};

// Device memory, aligned to 16 bytes. cudaErrorInvalidValue: a shape that is not supported.
cudaError_t rope_append(const RopeAppendArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_ROPE_APPEND_CUDA_H_
