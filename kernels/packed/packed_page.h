// A page of one KV head in any format, and how KV entries are written to it.
//
//   page = K of all its KV entries | V of all its KV entries          page_bytes(format, shape) bytes
//
// bf16 is stored low byte first. int2 pages are written whole, because keys share scales along tokens; the
// other formats are written per KV entry. Sizes and offsets: engine/base/kv_format.h.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_PAGE_H_
#define KVTWIN_KERNELS_PACKED_PACKED_PAGE_H_

#include <cstdint>
#include <span>

#include "engine/base/kv_format.h"
#include "kernels/packed/packed_attention.h"

namespace kvtwin::kernels {

// Bytes of the K part, which is the offset of V.
constexpr uint64_t key_part_bytes(Format format, const PageShape& shape) {
  return page_bytes(format, shape) - uint64_t{shape.page_tokens} * token_bytes(format, shape);
}

// k, v: [head_dim]. slot < page_tokens. REQUIRES: format is not int2.
void pack_kv_entry(Format format, const PageShape& shape, uint32_t slot, std::span<const float> k,
                   std::span<const float> v, std::span<uint8_t> page);

// k, v: [page_tokens][head_dim]. Any format.
void pack_page(Format format, const PageShape& shape, std::span<const float> k, std::span<const float> v,
               std::span<uint8_t> page);
// Dequantises the first `kv_entries`: k, v [kv_entries][head_dim]. int2: a multiple of the group.
void unpack_page(Format format, const PageShape& shape, std::span<const uint8_t> page, uint32_t kv_entries,
                 std::span<float> k, std::span<float> v);

// The first `kv_entries` of a page as input of attend_packed(). int2: a multiple of the group.
PackedRun page_run(Format format, const PageShape& shape, std::span<const uint8_t> page, uint32_t kv_entries);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_PACKED_PACKED_PAGE_H_
