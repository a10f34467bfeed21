// Where a number lies in a block of bf16 KV: (page, KV head) of one layer, as attention_decode.h has it.
//
// `page_tokens` rows of keys, then as many of values, head_dim numbers each. Rows that hold at least eight
// 16-byte chunks are swizzled (chunk c of slot s lies at chunk c ^ (s & 7)), unless a page is one token.

#ifndef KVTWIN_KERNELS_COMMON_KV_BLOCK_CUH_
#define KVTWIN_KERNELS_COMMON_KV_BLOCK_CUH_

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

namespace kvtwin {

struct KvBlockShape {
  uint32_t page_tokens = 16;
  uint32_t head_dim = 128;  // a multiple of 8; from 64 on a multiple of 64

  __host__ __device__ size_t numbers() const { return size_t{2} * page_tokens * head_dim; }
  __host__ __device__ uint32_t swizzle(uint32_t slot) const {
    return page_tokens > 1 && head_dim >= 64 ? slot & 7 : 0;
  }
  // Of keys; values lie page_tokens * head_dim further on.
  __host__ __device__ uint32_t at(uint32_t slot, uint32_t channel) const {
    return slot * head_dim + ((channel / 8 ^ swizzle(slot)) * 8 | channel % 8);
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_COMMON_KV_BLOCK_CUH_
