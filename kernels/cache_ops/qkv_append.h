// rope_append for shapes that it does not take: heads of any multiple of 8 up to 256, pages of any size.
// Slower for many rows; for few, all of it is latency. Defined by rms_norm_ref and rope_append_ref. Floor as
// there: each number read once and written once at 4.69 TB/s.

#ifndef KVTWIN_KERNELS_CACHE_OPS_QKV_APPEND_H_
#define KVTWIN_KERNELS_CACHE_OPS_QKV_APPEND_H_

#include "kernels/cache_ops/rope_append_cuda.h"

namespace kvtwin {

// As rope_append, but for head_dim and page_tokens, and: q lies elsewhere than qkv, a row has one slot, keys
// go to pages alone.
cudaError_t qkv_append(const RopeAppendArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_QKV_APPEND_H_
