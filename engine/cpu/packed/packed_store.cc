#include "engine/cpu/packed/packed_store.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cpu/packed/packed_rows.h"
#include "kernels/packed/packed_page.h"
#include "kernels/quant/pack.h"

namespace kvtwin::cpu {

Result<PackedStore> PackedStore::make(const LlmSpec& llm, const PageShape& shape,
                                      std::span<const PackedPool> pools, uint64_t scratch_pages) {
  uint64_t pages = 0, size = 0;
  std::vector<Pool> made;
  for (const PackedPool& pool : pools) {
    if (!page_shape_is_possible(shape, pool.format))
      return make_error("memory",
                        fmt::format("{} pages of {} tokens and heads of {} have no groups of {}",
                                    format_name(pool.format), shape.page_tokens, llm.head_dim, shape.group),
                        "int2 pages are whole groups, and a head is groups or a part of one");
    const uint64_t head_bytes = page_bytes(pool.format, shape);
    made.push_back({pool.format, pages, pool.pages, size, head_bytes});
    pages += pool.pages;
    size += pool.pages * head_bytes * llm.layers * llm.kv_heads;
  }
  Result<KvStore> values = KvStore::make(llm, shape.page_tokens, pages + scratch_pages);
  if (!values) return tl::unexpected<Error>(values.error());
  PackedStore out(llm, shape, std::move(*values));
  out.pools_ = std::move(made);
  out.pages_ = pages;
  out.size_ = size;
  if (size == 0) return out;
  void* const at =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return make_error("memory", fmt::format("there is no room for {} pages, {} bytes", pages, size),
                      "give fewer: --set=memory.gpu_pages=N");
  out.base_ = static_cast<uint8_t*>(at);
  return out;
}

PackedStore::PackedStore(PackedStore&& other) noexcept
    : shape_(other.shape_),
      layers_(other.layers_),
      kv_heads_(other.kv_heads_),
      pools_(std::move(other.pools_)),
      pages_(other.pages_),
      size_(other.size_),
      base_(std::exchange(other.base_, nullptr)),
      values_(std::move(other.values_)) {}

PackedStore::~PackedStore() {
  if (base_ != nullptr) munmap(base_, size_);
}

const PackedStore::Pool& PackedStore::pool_of(PageId page) const {
  for (const Pool& pool : pools_) {
    if (raw(page) < pool.first + pool.pages) return pool;
  }
  KVT_CHECK(raw(page) < pages_);
  return pools_.back();
}

std::span<uint8_t> PackedStore::bytes(PageId page, uint32_t layer, uint32_t head) const {
  const Pool& pool = pool_of(page);
  const uint64_t part =
      ((raw(page) - pool.first) * layers_ + layer) * kv_heads_ + head;  // index in [pages][layers][heads]
  return {base_ + pool.offset + part * pool.head_bytes, pool.head_bytes};
}

void PackedStore::put(PageId page, uint32_t slot, uint32_t layer, uint32_t head, const float* k,
                      const float* v) {
  const kernels::KvPages pages = values_.layer(layer);
  const uint64_t at = pages.at(raw(page), head, slot);
  pack_and_read(format(page), shape_, slot, bytes(page, layer, head), k, v, pages.keys + at,
                pages.values + at);
}

void PackedStore::set_exact(uint64_t page, uint32_t slot, uint32_t layer, uint32_t head, const float* k,
                            const float* v) {
  const kernels::KvPages pages = values_.layer(layer);
  const uint64_t at = pages.at(static_cast<uint32_t>(page), head, slot);
  std::copy_n(k, shape_.head_dim, pages.keys + at);
  std::copy_n(v, shape_.head_dim, pages.values + at);
}

void PackedStore::put_keys(PageId page, uint32_t first, uint32_t layer, uint32_t head, const float* k) {
  KVT_CHECK(format(page) == Format::kInt2 && first % shape_.group == 0);
  const size_t floats = size_t{shape_.group} * shape_.head_dim, packed = key_group_bytes(2, shape_);
  const std::span<uint8_t> to = bytes(page, layer, head).subspan(first / shape_.group * packed, packed);
  kernels::pack_key_group({k, floats}, 2, shape_, to);
  const kernels::KvPages pages = values_.layer(layer);
  kernels::unpack_key_group(to, 2, shape_, {pages.keys + pages.at(raw(page), head, first), floats});
}

void PackedStore::put_value(PageId page, uint32_t slot, uint32_t layer, uint32_t head, const float* v) {
  KVT_CHECK(format(page) == Format::kInt2);
  const size_t each = token_bytes(Format::kInt2, shape_);
  const std::span<uint8_t> to =
      bytes(page, layer, head).subspan(kernels::key_part_bytes(Format::kInt2, shape_) + slot * each, each);
  kernels::pack_token({v, shape_.head_dim}, 2, shape_, to);
  const kernels::KvPages pages = values_.layer(layer);
  kernels::unpack_token(to, 2, shape_, {pages.values + pages.at(raw(page), head, slot), shape_.head_dim});
}

void PackedStore::move(PageId source, uint32_t from, PageId target, uint32_t to, uint32_t layer,
                       uint32_t head) {
  const Format format_here = format(source);
  KVT_CHECK(format_here == format(target) && format_here != Format::kInt2);
  const size_t each = token_bytes(format_here, shape_);
  const std::span<const uint8_t> source_bytes = bytes(source, layer, head);
  const std::span<uint8_t> target_bytes = bytes(target, layer, head);
  for (const uint64_t part : {uint64_t{0}, kernels::key_part_bytes(format_here, shape_)})
    std::copy_n(source_bytes.data() + part + from * each, each, target_bytes.data() + part + to * each);
  const kernels::KvPages pages = values_.layer(layer);
  const uint64_t d = shape_.head_dim, at = pages.at(raw(source), head, from),
                 behind = pages.at(raw(target), head, to);
  std::copy_n(pages.keys + at, d, pages.keys + behind);
  std::copy_n(pages.values + at, d, pages.values + behind);
}

void PackedStore::copy(PageId source, PageId target) {
  KVT_CHECK(format(source) == format(target));
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    for (uint32_t head = 0; head < kv_heads_; ++head) {
      const std::span<uint8_t> from = bytes(source, layer, head);
      std::copy(from.begin(), from.end(), bytes(target, layer, head).begin());
    }
  }
  values_.copy(source, target);
}

}  // namespace kvtwin::cpu
