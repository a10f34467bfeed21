// Pages of the host back into blocks of the GPU's pages, one KV head at a time, and out again
// (docs/design/methods/freekv.md#recall).
//
// A host page of one layer holds the rows of its GPU blocks, each row with the bytes that it has there
// (kv_block.cuh, the swizzle included), in one of two orders:
//   HND  [kv_heads][2][page_tokens][head_dim]: a head is one piece, 2 P d numbers: the block itself
//   NHD  [2][page_tokens][kv_heads][head_dim]: a head is 2 P pieces of d numbers
// So moving never reads the contents of a row. What is read and written is defined by
// kernels/cache_ops/host_page.h.
//
// recall_pages is a kernel that reads pinned memory, in one of two ways. By the bulk copies of a few CTAs
// that have SMs of their own: two or three saturate PCIe from 4 KB pieces on. Or spread: single warps that
// fit next to the kernel that fills their SMs; 70 keep up with PCIe, and slow a concurrent decode less,
// because no SM falls behind the others. The list may be written on the device just before. copy_recalled
// does the same by the copy engine, for a list that the host knows. stage_pages turns pages into host pages
// on the GPU; they leave from there in one copy each (stores of a kernel to the host slow down what runs
// concurrently by 30 % and more, docs/design/kernels.md#pcie: never).
//
// Floors: 16 KB units at 55.4 GB/s (the copy engine, large copies); stage_pages: 2 x bytes / 4.69 TB/s.
// Measured: kernels/README.md, by kernels/bench/recall_bench.cu.

#ifndef KVTWIN_KERNELS_CACHE_OPS_RECALL_PAGES_H_
#define KVTWIN_KERNELS_CACHE_OPS_RECALL_PAGES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/cache_ops/host_page.h"

namespace kvtwin {

// One layer of the host's pages: page i begins page_stride numbers behind page i - 1.
struct HostPool {
  const __nv_bfloat16* pages = nullptr;  // pinned; where the GPU sees it
  uint64_t page_stride = 0;
  kernels::HostPageLayout layout = kernels::HostPageLayout::kHnd;
  uint32_t page_tokens = 32;
  uint32_t kv_heads = 8;
  uint32_t head_dim = 128;  // a multiple of 8, at most 4,096

  // What a page holds of one head, and of all.
  uint64_t head_numbers() const { return uint64_t{2} * page_tokens * head_dim; }
  uint64_t page_numbers() const { return head_numbers() * kv_heads; }
};

struct RecallMove {
  uint32_t page = 0;   // of the host
  uint32_t head = 0;   // of it
  uint32_t block = 0;  // of the GPU's pool: what is overwritten
};

struct RecallArgs {
  HostPool host;
  __nv_bfloat16* pool = nullptr;
  const RecallMove* moves = nullptr;  // [*count], on the device; no block twice
  const uint32_t* count = nullptr;    // on the device
  uint32_t ctas = 4;                  // spread: warps
  bool spread = false;
  // Spread only: 8 KB a warp are stored together, when the GPU's clock is a multiple of this. Concurrent
  // kernels are slowed less, and the recall takes up to this much longer. 0: at once.
  uint32_t burst_ns = 0;
};
cudaError_t recall_pages(const RecallArgs& args, cudaStream_t stream);

// The copy engine's: `moves` lies on the host, and is read before this returns. HND: one request, which
// copies all in no order; NHD: a strided copy each.
cudaError_t copy_recalled(const HostPool& host, __nv_bfloat16* pool, std::span<const RecallMove> moves,
                          cudaStream_t stream);

struct StageArgs {
  const __nv_bfloat16* pool = nullptr;
  const uint32_t* pages = nullptr;   // [count], of the GPU: page p is blocks p * kv_heads and following
  __nv_bfloat16* staging = nullptr;  // [count] host pages, without gaps
  HostPool host;                     // the shape
  uint32_t count = 0;
};
cudaError_t stage_pages(const StageArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_RECALL_PAGES_H_
