// KvStore holds the values of an engine's pages. Tiers are ranges of one address space (units.h, PageId);
// this engine treats all of them as equal memory.
//
// A page is contiguous: [layers][keys, values][kv_heads][page_tokens][head_dim], fp32. Its memory is
// committed when it is first written.

#ifndef KVTWIN_ENGINE_CPU_KV_STORE_H_
#define KVTWIN_ENGINE_CPU_KV_STORE_H_

#include <cstdint>

#include "engine/base/result.h"
#include "engine/base/units.h"
#include "kernels/common/kv_pages.h"
#include "models/catalog/llm.h"

namespace kvtwin::cpu {

class KvStore {
 public:
  // Fails if the address space cannot be reserved.
  static Result<KvStore> make(const LlmSpec& llm, uint32_t page_tokens, uint64_t pages);
  KvStore(KvStore&& other) noexcept;
  KvStore& operator=(KvStore&&) = delete;
  ~KvStore();

  kernels::KvPages layer(uint32_t index) const;
  uint32_t page_tokens() const { return page_tokens_; }
  uint64_t pages() const { return pages_; }
  uint64_t page_bytes() const { return page_floats_ * sizeof(float); }

  void copy(PageId source, PageId target);
  // Sets every value to NaN, so that reading before writing is noticed.
  void poison(PageId page);

 private:
  KvStore() = default;
  float* at(PageId page) const;

  float* base_ = nullptr;
  uint64_t pages_ = 0;
  uint64_t page_floats_ = 0;
  uint64_t part_floats_ = 0;  // keys, or values, of one layer
  uint32_t page_tokens_ = 0;
  uint32_t kv_heads_ = 0;
  uint32_t head_dim_ = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_KV_STORE_H_
