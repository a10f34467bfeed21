// rope_append for shapes that it does not support: head sizes of any multiple of 8 up to 256, pages of any
// size. Definition: rms_norm_ref and rope_append_ref. Bound: each number read once and written once at 4.69
// TB/s. It is slower than rope_append for many rows; few rows are bound by latency in both.

#ifndef KVTWIN_KERNELS_CACHE_OPS_QKV_APPEND_H_
#define KVTWIN_KERNELS_CACHE_OPS_QKV_APPEND_H_

#include "kernels/cache_ops/rope_append_cuda.h"

namespace kvtwin {

// As rope_append, except for head_dim and page_tokens, and: q does not overlap qkv, a row has one slot, and
// keys are written to pages only.
cudaError_t qkv_append(const RopeAppendArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_QKV_APPEND_H_
