#include "kernels/packed/packed_page.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "kernels/quant/pack.h"
#include "tests/unit/kernels/random_rows.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using kvtwin::testing::random_rows;

namespace {

constexpr Format kFormats[] = {Format::kBf16, Format::kFp8, Format::kInt4, Format::kInt2, Format::kFp4};

}  // namespace

TEST_CASE("Q-1 packed page: whole pages and single KV entries are written and read back, in every format") {
  for (const PageShape& shape : {PageShape{32, 128, 32}, {64, 64, 32}, {128, 128, 64}}) {
    for (const Format format : kFormats) {
      CAPTURE(format_name(format));
      const size_t d = shape.head_dim, n = shape.page_tokens * d;
      const auto k = random_rows(1, n), v = random_rows(2, n);
      std::vector<uint8_t> page(page_bytes(format, shape)), by_entry(page.size()), again(page.size());
      pack_page(format, shape, k, v, page);
      if (format != Format::kInt2) {
        for (uint32_t slot = shape.page_tokens; slot-- > 0;) {
          pack_kv_entry(format, shape, slot, std::span(k).subspan(slot * d, d),
                        std::span(v).subspan(slot * d, d), by_entry);
        }
        CHECK(by_entry == page);
      }
      std::vector<float> k_back(n), v_back(n);
      unpack_page(format, shape, page, shape.page_tokens, k_back, v_back);
      // The numbers are within about 3.5: an int2 step over 32 of them is below 2.4.
      const float bound = format == Format::kInt2 ? 1.2f : format == Format::kBf16 ? 0.01f : 0.6f;
      for (size_t i = 0; i < n; ++i) {
        CHECK(std::abs(k_back[i] - k[i]) <= bound);
        CHECK(std::abs(v_back[i] - v[i]) <= bound);
      }
      pack_page(format, shape, k_back, v_back, again);
      std::vector<float> k_twice(n), v_twice(n);
      unpack_page(format, shape, again, shape.page_tokens, k_twice, v_twice);
      CHECK(k_twice == k_back);
      CHECK(v_twice == v_back);
    }
  }
}

TEST_CASE("Q-2 packed page: attention over the pages of a mixed table equals that over dequantised rows") {
  const PageShape shape{32, 128, 32};
  const Format formats[] = {Format::kInt2, Format::kInt2, Format::kInt4,
                            Format::kBf16, Format::kFp8,  Format::kFp4};
  const uint32_t kv_entries[] = {32, 32, 32, 5, 17, 1};
  std::vector<std::vector<uint8_t>> pages;
  std::vector<PackedRun> packed, plain;
  std::vector<std::vector<float>> rows;
  rows.reserve(20);
  for (size_t i = 0; i < 6; ++i) {
    pages.emplace_back(page_bytes(formats[i], shape));
    pack_page(formats[i], shape, random_rows(i + 10, 32 * 128), random_rows(i + 20, 32 * 128), pages.back());
    packed.push_back(page_run(formats[i], shape, pages.back(), kv_entries[i]));
    std::vector<float> k(kv_entries[i] * 128), v(k.size());
    unpack_page(formats[i], shape, pages.back(), kv_entries[i], k, v);
    rows.push_back(k);
    rows.push_back(v);
    plain.push_back(
        {{Rows::kExact, rows[2 * i].data()}, {Rows::kExact, rows[2 * i + 1].data()}, kv_entries[i]});
  }
  const auto q = random_rows(5, 128);
  std::vector<float> a(128), b(128);
  attend_packed(q, 0.088f, packed, shape, a);
  attend_packed(q, 0.088f, plain, shape, b);
  for (size_t c = 0; c < 128; ++c) CHECK(std::abs(a[c] - b[c]) < 2e-6f);
}
