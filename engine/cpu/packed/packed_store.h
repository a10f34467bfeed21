// PackedStore holds pages of packed KV entries, byte for byte as kernels read them, and an fp32 copy of their
// dequantized values.
//
// The bytes are authoritative: a KV entry is packed, and attention reads the values unpacked from its bytes.
// The fp32 copy exists because unpacking the context for every token would dominate this engine's time. It
// holds only unpacked values, and values that a method keeps exact (set_exact).
//
//   page = [layers][kv_heads][page_bytes(format)]        kernels/packed/packed_page.h
//
// Pools of several formats are consecutive in one address space. Scratch pages follow them and hold exact KV
// entries only.

#ifndef KVTWIN_ENGINE_CPU_PACKED_PACKED_STORE_H_
#define KVTWIN_ENGINE_CPU_PACKED_PACKED_STORE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/kv_format.h"
#include "engine/base/result.h"
#include "engine/cpu/kv_store.h"

namespace kvtwin::cpu {

struct PackedPool {
  Format format{};
  uint32_t pages = 0;
};

class PackedStore {
 public:
  // Fails if a page cannot be divided into groups, or the address space cannot be reserved.
  static Result<PackedStore> make(const LlmSpec& llm, const PageShape& shape,
                                  std::span<const PackedPool> pools, uint64_t scratch_pages);
  PackedStore(PackedStore&& other) noexcept;
  PackedStore& operator=(PackedStore&&) = delete;
  ~PackedStore();

  const PageShape& shape() const { return shape_; }
  Format format(PageId page) const { return pool_of(page).format; }
  // The first scratch page.
  uint64_t scratch() const { return pages_; }
  // The pages that attention reads.
  kernels::KvPages layer(uint32_t index) const { return values_.layer(index); }
  // The bytes of one layer and KV head of a page.
  std::span<uint8_t> bytes(PageId page, uint32_t layer, uint32_t head) const;

  // k, v [head_dim]. REQUIRES (put): the page's format is not int2.
  void put(PageId page, uint32_t slot, uint32_t layer, uint32_t head, const float* k, const float* v);
  // Writes KV entries that are not packed yet, or never are: the bytes do not change.
  void set_exact(uint64_t page, uint32_t slot, uint32_t layer, uint32_t head, const float* k, const float* v);
  // int2: k [group][head_dim], slots [first, first + group), first a multiple of the group.
  void put_keys(PageId page, uint32_t first, uint32_t layer, uint32_t head, const float* k);
  void put_value(PageId page, uint32_t slot, uint32_t layer, uint32_t head, const float* v);

  // Moves one layer and head of a KV entry, bytes included: a packed KV entry is not packed again. REQUIRES:
  // one format, not int2.
  void move(PageId source, uint32_t from, PageId target, uint32_t to, uint32_t layer, uint32_t head);
  // REQUIRES: one format.
  void copy(PageId source, PageId target);
  // Sets every value to NaN, so that reading before writing is noticed.
  void poison(PageId page) { values_.poison(page); }

 private:
  struct Pool {
    Format format{};
    uint64_t first = 0, pages = 0;
    uint64_t offset = 0;      // of its first page, in bytes
    uint64_t head_bytes = 0;  // bytes of one layer and head of a page
  };
  PackedStore(const LlmSpec& llm, const PageShape& shape, KvStore values)
      : shape_(shape), layers_(llm.layers), kv_heads_(llm.kv_heads), values_(std::move(values)) {}
  const Pool& pool_of(PageId page) const;

  const PageShape shape_;
  const uint32_t layers_, kv_heads_;
  std::vector<Pool> pools_;
  uint64_t pages_ = 0;  // of all pools
  uint64_t size_ = 0;
  uint8_t* base_ = nullptr;
  KvStore values_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_PACKED_PACKED_STORE_H_
