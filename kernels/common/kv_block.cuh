// Layout of a block of bf16 KV: one (page, KV head) of one layer, as in attention_decode.h.
//
// `page_tokens` rows of keys, then as many rows of values, head_dim numbers each. Rows of at least eight
// 16-byte chunks are swizzled: chunk c of slot s is stored as chunk c ^ (s & 7). Pages of one token are not
// swizzled.

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
  // Index of a key's number; the value's is page_tokens * head_dim higher.
  __host__ __device__ uint32_t at(uint32_t slot, uint32_t channel) const {
    return slot * head_dim + ((channel / 8 ^ swizzle(slot)) * 8 | channel % 8);
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_COMMON_KV_BLOCK_CUH_
