#include "engine/base/check.h"
#include "kernels/common/small_floats.h"
#include "kernels/packed/packed_page.h"
#include "kernels/quant/pack.h"
#include "kernels/quant/pack_low_bit.h"

namespace kvtwin::kernels {
namespace {

Rows rows_of(Format format, bool keys) {
  switch (format) {
    case Format::kFp8:
      return Rows::kFp8;
    case Format::kInt4:
      return Rows::kInt4;
    case Format::kFp4:
      return Rows::kFp4;
    case Format::kInt2:
      return keys ? Rows::kGroup2 : Rows::kInt2;
    case Format::kBf16:
      break;
  }
  return Rows::kBf16;
}

void pack_row(Format format, const PageShape& shape, std::span<const float> x, std::span<uint8_t> out) {
  switch (format) {
    case Format::kFp8:
      return pack_fp8(x, 1, out);
    case Format::kFp4:
      return pack_fp4(x, out);
    case Format::kInt4:
      return pack_token(x, 4, shape, out);
    case Format::kInt2:
      return pack_token(x, 2, shape, out);
    case Format::kBf16:
      break;
  }
  for (size_t i = 0; i < x.size(); ++i) store_u16(out.data() + 2 * i, to_bf16(x[i]));
}

}  // namespace

void pack_kv_entry(Format format, const PageShape& shape, uint32_t slot, std::span<const float> k,
                   std::span<const float> v, std::span<uint8_t> page) {
  KVT_CHECK(format != Format::kInt2);
  KVT_CHECK(slot < shape.page_tokens && page.size() == page_bytes(format, shape));
  const size_t bytes = token_bytes(format, shape);
  pack_row(format, shape, k, page.subspan(slot * bytes, bytes));
  pack_row(format, shape, v, page.subspan(key_part_bytes(format, shape) + slot * bytes, bytes));
}

void pack_page(Format format, const PageShape& shape, std::span<const float> k, std::span<const float> v,
               std::span<uint8_t> page) {
  KVT_CHECK(page_shape_is_possible(shape, format));
  KVT_CHECK(page.size() == page_bytes(format, shape));
  const size_t d = shape.head_dim, bytes = token_bytes(format, shape), values = key_part_bytes(format, shape);
  KVT_CHECK(k.size() == shape.page_tokens * d && v.size() == k.size());
  for (uint32_t slot = 0; slot < shape.page_tokens; ++slot) {
    if (format != Format::kInt2)
      pack_row(format, shape, k.subspan(slot * d, d), page.subspan(slot * bytes, bytes));
    pack_row(format, shape, v.subspan(slot * d, d), page.subspan(values + slot * bytes, bytes));
  }
  if (format != Format::kInt2) return;
  const size_t group = size_t{shape.group} * d, packed = key_group_bytes(2, shape);
  for (size_t g = 0; g * shape.group < shape.page_tokens; ++g)
    pack_key_group(k.subspan(g * group, group), 2, shape, page.subspan(g * packed, packed));
}

PackedRun page_run(Format format, const PageShape& shape, std::span<const uint8_t> page,
                   uint32_t kv_entries) {
  KVT_CHECK(kv_entries <= shape.page_tokens && page.size() == page_bytes(format, shape));
  return {{rows_of(format, true), page.data()},
          {rows_of(format, false), page.data() + key_part_bytes(format, shape)},
          kv_entries};
}

void unpack_page(Format format, const PageShape& shape, std::span<const uint8_t> page, uint32_t kv_entries,
                 std::span<float> k, std::span<float> v) {
  const PackedRun run = page_run(format, shape, page, kv_entries);
  unpack_side(run.k, true, kv_entries, shape, k);
  unpack_side(run.v, false, kv_entries, shape, v);
}

}  // namespace kvtwin::kernels
