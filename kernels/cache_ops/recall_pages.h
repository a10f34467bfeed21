// Recalls pages from the host into blocks of the GPU's pages, one KV head at a time, and stages pages for the
// way out (docs/design/methods/freekv.md#recall).
//
// A host page of one layer holds the rows of its GPU blocks byte by byte (kv_block.cuh, swizzle included), so
// a copy never interprets a row. There are two orders, defined by kernels/cache_ops/host_page.h:
//   HND  [kv_heads][2][page_tokens][head_dim]: a head is one piece of 2 P d numbers, the block itself
//   NHD  [2][page_tokens][kv_heads][head_dim]: a head is 2 P pieces of d numbers
//
// recall_pages is a kernel that reads pinned host memory, in one of two forms. Dedicated: bulk copies by a
// few CTAs with SMs of their own; two or three saturate PCIe from pieces of 4 KB on. Spread: single warps
// that fit next to the CTAs of a concurrent kernel; 70 keep up with PCIe, and a concurrent decode slows down
// less, because no SM falls behind the others. The list of moves may be written by an earlier kernel on the
// stream. (copied_recall.h: the same by the copy engine, for a list that the host knows.)
//
// stage_pages converts pages to host pages on the GPU; the copy engine then offloads each with one copy.
// Kernel stores to host memory are not used: they slow concurrent kernels by 30 % and more
// (docs/design/kernels.md#pcie).
//
// Bound: recall 55.4 GB/s (the copy engine, large copies); stage_pages 2 * bytes / 4.69 TB/s. Measured by
// kernels/bench/recall_bench.cu: see kernels/README.md.

#ifndef KVTWIN_KERNELS_CACHE_OPS_RECALL_PAGES_H_
#define KVTWIN_KERNELS_CACHE_OPS_RECALL_PAGES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cache_ops/host_page.h"

namespace kvtwin {

// One layer of the host's pages: page i starts page_stride numbers after page i - 1.
struct HostPool {
  const __nv_bfloat16* pages = nullptr;  // pinned; the address that the GPU uses
  uint64_t page_stride = 0;
  kernels::HostPageLayout layout = kernels::HostPageLayout::kHnd;
  uint32_t page_tokens = 32;
  uint32_t kv_heads = 8;
  uint32_t head_dim = 128;  // a multiple of 8, at most 4,096

  // Numbers of one head of a page, and of all heads.
  __host__ __device__ uint64_t head_numbers() const { return uint64_t{2} * page_tokens * head_dim; }
  __host__ __device__ uint64_t page_numbers() const { return head_numbers() * kv_heads; }
};

struct RecallMove {
  uint32_t page = 0;   // page of the host
  uint32_t head = 0;   // KV head of that page
  uint32_t block = 0;  // block of the GPU's pool that is overwritten
};

struct RecallArgs {
  HostPool host;
  __nv_bfloat16* pool = nullptr;
  const RecallMove* moves = nullptr;  // [*count], on the device; no block appears twice
  const uint32_t* count = nullptr;    // on the device
  uint32_t ctas = 4;                  // with `spread`: warps
  bool spread = false;
  // Spread only: each warp stores 8 KB whenever the GPU's clock is a multiple of this, all warps at the same
  // time. A concurrent kernel slows down less; the recall takes up to this much longer. 0: no bursts.
  uint32_t burst_ns = 0;
  bool values_only = false;  // not with `spread`: keys of the blocks stay as they are
};
cudaError_t recall_pages(const RecallArgs& args, cudaStream_t stream);

struct StageArgs {
  const __nv_bfloat16* pool = nullptr;
  const uint32_t* pages = nullptr;   // [count], GPU pages: page p is blocks p * kv_heads and following
  __nv_bfloat16* staging = nullptr;  // [count] host pages, without gaps
  HostPool host;                     // only its shape is used
  uint32_t count = 0;
};
cudaError_t stage_pages(const StageArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_RECALL_PAGES_H_
