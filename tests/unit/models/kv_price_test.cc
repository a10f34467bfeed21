#include "models/cost/kv_price.h"

#include <doctest/doctest.h>

#include "models/catalog/catalog.h"

namespace kvtwin {
namespace {

constexpr Format kFormats[] = {Format::kBf16, Format::kFp8, Format::kInt4, Format::kInt2, Format::kFp4};

}  // namespace

TEST_CASE(
    "kv price: bytes of a KV entry are those of docs/design/methods/triaxialkv.md#bytes and "
    "docs/design/kernels.md#floors") {
  const double expected[3][5] = {
      {512, 256, 160, 96, 144}, {512, 256, 144, 80, 144}, {512, 256, 136, 72, 144}};
  const uint32_t groups[] = {32, 64, 128};
  for (size_t g = 0; g < 3; ++g) {
    for (size_t f = 0; f < 5; ++f)
      CHECK(kv_entry_bytes(kFormats[f], {128, 128, groups[g]}) == expected[g][f]);
  }
  CHECK(read_rate_factor(NumberFormat::kBf16) == 1);
}

TEST_CASE("kv price: memory and cost models see the same bytes as the page layout") {
  for (const uint32_t head_dim : {64u, 128u}) {
    for (const uint32_t group : {32u, 64u, 128u}) {
      for (const Format format : kFormats) {
        CAPTURE(format_name(format));
        CAPTURE(head_dim);
        CAPTURE(group);
        const PageShape shape{128, head_dim, group};
        const double priced = kv_tensor_format(format, shape).bytes(2.0 * head_dim);
        const double stored = kv_entry_bytes(format, shape);
        if (format == Format::kInt2 && group > head_dim) {
          CHECK(priced > stored);
          CHECK(priced < 1.17 * stored);
        } else {
          CHECK(priced == doctest::Approx(stored));
        }
      }
    }
  }
  LlmSpec llm = *Catalog().llm("llama-3.1-8b");
  const PageShape shape{32, 128, 32};
  llm.kv = kv_tensor_format(Format::kInt2, shape);
  CHECK(llm.kv_bytes_per_token() * 32 == pool_page_bytes(llm, 1, Format::kInt2, shape));
  CHECK(pool_page_bytes(llm, 4, Format::kInt4, shape) == 32ull * 160 * 32 * 2);
}

}  // namespace kvtwin
