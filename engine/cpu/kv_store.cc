#include "engine/cpu/kv_store.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin::cpu {

Result<KvStore> KvStore::make(const LlmSpec& llm, uint32_t page_tokens, uint64_t pages) {
  KvStore out;
  out.pages_ = pages;
  out.page_tokens_ = page_tokens;
  out.kv_heads_ = llm.kv_heads;
  out.head_dim_ = llm.head_dim;
  out.part_floats_ = uint64_t{llm.kv_heads} * page_tokens * llm.head_dim;
  out.page_floats_ = out.part_floats_ * 2 * llm.layers;
  uint64_t bytes = 0;
  // Reserves address space only: the kernel commits memory on the first write.
  if (__builtin_mul_overflow(out.page_bytes(), pages, &bytes) || bytes > uint64_t{1} << 46)
    return make_error("memory", fmt::format("{} pages of {} bytes are too many", pages, out.page_bytes()),
                      "give fewer: --set=memory.gpu_pages=N");
  if (bytes == 0) return out;
  void* const at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return make_error("memory",
                      fmt::format("there is no room for {} pages of {} bytes", pages, out.page_bytes()),
                      "give fewer: --set=memory.gpu_pages=N");
  out.base_ = static_cast<float*>(at);
  return out;
}

KvStore::KvStore(KvStore&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      pages_(other.pages_),
      page_floats_(other.page_floats_),
      part_floats_(other.part_floats_),
      page_tokens_(other.page_tokens_),
      kv_heads_(other.kv_heads_),
      head_dim_(other.head_dim_) {}

KvStore::~KvStore() {
  if (base_ != nullptr) munmap(base_, pages_ * page_bytes());
}

kernels::KvPages KvStore::layer(uint32_t index) const {
  float* const keys = base_ + uint64_t{index} * 2 * part_floats_;
  return {keys, keys + part_floats_, page_floats_, page_tokens_, kv_heads_, head_dim_};
}

float* KvStore::at(PageId page) const {
  KVT_CHECK(raw(page) < pages_);
  return base_ + raw(page) * page_floats_;
}

void KvStore::copy(PageId source, PageId target) { std::copy_n(at(source), page_floats_, at(target)); }

void KvStore::poison(PageId page) { std::fill_n(at(page), page_floats_, std::nanf("")); }

}  // namespace kvtwin::cpu
