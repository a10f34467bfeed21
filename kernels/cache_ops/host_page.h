// Layout of one layer of a page on the host, and its copies to and from the GPU
// (docs/design/methods/freekv.md#recall).
//
//   HND  [kv_heads][2][page_tokens][head_dim]  K and V of a head are one piece of 2 P d numbers
//   NHD  [2][page_tokens][kv_heads][head_dim]  K and V of a head are 2 P pieces of d numbers
// A page is offloaded whole, once, when it is full. It is recalled one KV head at a time, through a staging
// buffer.

#ifndef KVTWIN_KERNELS_CACHE_OPS_HOST_PAGE_H_
#define KVTWIN_KERNELS_CACHE_OPS_HOST_PAGE_H_

#include <cstdint>

#include "engine/base/recall_copies.h"
#include "kernels/common/kv_pages.h"

namespace kvtwin::kernels {

using kvtwin::HostPageLayout;

struct HostPage {
  float* data = nullptr;  // 2 * kv_heads * page_tokens * head_dim numbers
  HostPageLayout layout = HostPageLayout::kHnd;
  uint32_t page_tokens = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;

  // part 0: the key of token `token`; part 1: its value; [head_dim].
  float* at(uint32_t head, uint32_t part, uint32_t token) const {
    const uint64_t row = layout == HostPageLayout::kHnd
                             ? (uint64_t{head} * 2 + part) * page_tokens + token
                             : (uint64_t{part} * page_tokens + token) * kv_heads + head;
    return data + row * head_dim;
  }
};

// Copies all heads of GPU page `page` to `host`.
void offload_page_ref(const KvPages& gpu, uint32_t page, const HostPage& host);
// Copies one head from `host` to staging [2][page_tokens][head_dim]. Returns the number of contiguous pieces.
uint32_t recall_head_ref(const HostPage& host, uint32_t head, float* staging);
// Copies staging to one head of GPU page `page`.
void scatter_head_ref(const float* staging, uint32_t head, uint32_t page, const KvPages& gpu);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_CACHE_OPS_HOST_PAGE_H_
