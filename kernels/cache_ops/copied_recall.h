// Recalls pages by the copy engine, for a list that the host knows (docs/design/methods/freekv.md#recall).
// recall_pages.h does the same by a kernel, for a list on the device.
//
// copy_recalled writes blocks of the GPU's pages directly: for HND one copy for each page of a head, for NHD
// a strided copy, or a copy for each of its rows.
//
// stream_recalled is FreeKV's double-buffered streamed recall, for HND host pages. The pages of one head of
// one request are copied to a staging buffer, each in one copy, and a kernel converts them to the GPU's
// layout, while the next head's are copied to the other buffer on the other stream. A stream orders the uses
// of its buffer. With one buffer and one stream, a head's pages are converted before the next head's are
// copied. The GPU's pages are blocks of heads, as this project's attention reads them, or NHD, as FreeKV's
// does.
//
// Bound: bytes / 55.4 GB/s (the copy engine, large copies); conversion 2 * bytes / 4.69 TB/s, with two
// buffers beside the next copies. Measured by kernels/bench/recall_bench.cu: see kernels/README.md.

#ifndef KVTWIN_KERNELS_CACHE_OPS_COPIED_RECALL_H_
#define KVTWIN_KERNELS_CACHE_OPS_COPIED_RECALL_H_

#include <span>

#include "kernels/cache_ops/recall_pages.h"

namespace kvtwin {

// `moves` is host memory, read before the function returns. REQUIRES: `copy` is not kKernel. HND: one batch
// of copies without order, on a stream other than the default one.
cudaError_t copy_recalled(const HostPool& host, HostCopy copy, __nv_bfloat16* pool,
                          std::span<const RecallMove> moves, cudaStream_t stream);

struct StreamedRecall {
  HostPool host;  // HND
  __nv_bfloat16* pool = nullptr;
  // Block b is head b % kv_heads of page b / kv_heads. NHD: [page][2][page_tokens][kv_heads][head_dim].
  kernels::HostPageLayout pool_layout = kernels::HostPageLayout::kHnd;
  __nv_bfloat16* staging[2] = {};  // [staged_max][2][page_tokens][head_dim] each
  uint32_t staged_max = 0;
  uint32_t buffers = 2;          // 1: staging[1], streams[1] and the events are not used
  cudaStream_t streams[2] = {};  // the recall begins behind the work of the first, which continues behind it
  cudaEvent_t begun = nullptr, ended = nullptr;
};
// `moves` is pinned memory that stays as it is until the recall has ended; no block appears twice. The first
// heads[0] moves are of one head of one request, the next heads[1] of another one, and so on; more than
// staged_max are staged in parts.
cudaError_t stream_recalled(const StreamedRecall& recall, const RecallMove* moves,
                            std::span<const uint32_t> heads);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_COPIED_RECALL_H_
