// Layout of the KV of one layer in pages, as the kernels of the CPU engine read and write it.

#ifndef KVTWIN_KERNELS_COMMON_KV_PAGES_H_
#define KVTWIN_KERNELS_COMMON_KV_PAGES_H_

#include <cstdint>

namespace kvtwin::kernels {

// fp32, HND: the KV entries of one KV head are consecutive rows of head_dim.
//   key   of (page p, KV head h, slot s): keys   + p * page_stride + (h * page_tokens + s) * head_dim
//   value of (page p, KV head h, slot s): values + p * page_stride + (h * page_tokens + s) * head_dim
struct KvPages {
  float* keys = nullptr;
  float* values = nullptr;
  uint64_t page_stride = 0;  // in floats
  uint32_t page_tokens = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;

  uint64_t at(uint32_t page, uint32_t kv_head, uint32_t slot) const {
    return page * page_stride + (uint64_t{kv_head} * page_tokens + slot) * head_dim;
  }
};

// Slots [first, first + count) of `page`: one run of a ReadSet (docs/design/methods/composition.md#data).
struct ReadRun {
  uint32_t page = 0;
  uint32_t first = 0;
  uint32_t count = 0;
};

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_COMMON_KV_PAGES_H_
