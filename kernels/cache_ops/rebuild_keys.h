// Rebuilds the keys of chosen pages from low-rank coordinates (ShadowKV, docs/design/methods/freekv.md
// #timelines): key = rope(coordinates of the token x directions of the request), written to the pages' slots.
// Defined by rebuild_ref and rope_ref; coordinates and directions are bf16, sums fp32, on tensor cores.
//
// A CTA has some slots of one KV head of a row: a warp owns 16 channels, and a page is rebuilt 16 tokens at a
// time. Directions are read from L2 for every slot. Bound: 2 * rank * head_dim flops a token and head at 790
// TFLOP/s; 2 * rank bytes of coordinates read and 2 * head_dim written at 4.69 TB/s.

#ifndef KVTWIN_KERNELS_CACHE_OPS_REBUILD_KEYS_H_
#define KVTWIN_KERNELS_CACHE_OPS_REBUILD_KEYS_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

// Offsets refer to `lists`.
struct RebuildRow {
  uint32_t state = 0;
  uint32_t factors = 0;     // lists[factors + i]: the page of coordinates of candidate i
  uint32_t slots = 0;       // lists[slots + i]: GPU page of slot i
  uint32_t first_page = 0;  // the page number of candidate 0, which gives positions
};

struct RebuildArgs {
  const RebuildRow* rows = nullptr;  // [count]
  uint32_t count = 0;
  const uint32_t* lists = nullptr;
  const uint32_t* held = nullptr;              // [states][kv_heads][chosen]: the candidate in each slot
  const __nv_bfloat16* coordinates = nullptr;  // [pages][page_tokens][rank]
  const __nv_bfloat16* directions = nullptr;   // [states][rank][kv_heads * head_dim]
  const float* inv_freq = nullptr;             // [head_dim / 2]
  float rope_scale = 1;
  __nv_bfloat16* pool = nullptr;  // block (page, head) is page * kv_heads + head
  uint32_t rank = 0;              // a multiple of 16
  uint32_t chosen = 0, kv_heads = 0;
  uint32_t page_tokens = 0;  // a multiple of 16
  uint32_t head_dim = 0;     // 64 or 128
};
cudaError_t rebuild_keys(const RebuildArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_REBUILD_KEYS_H_
