// PackedCache: the stored bytes follow the layouts, attention reads the stored bytes, and neither depends on
// pages or, except for a chunk's own tokens, on chunks. Driven directly, with random rows.

#include "engine/cpu/packed/packed_cache.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "kernels/packed/packed_page.h"
#include "kernels/quant/pack.h"
#include "kernels/quant/pack_low_bit.h"
#include "tests/unit/cpu_engine/cache_rows.h"
#include "tests/unit/cpu_engine/tiny_models.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr RequestId kPackedA{1}, kPackedB{2};
constexpr uint32_t kPackedPage = 32, kResidual = 64;

LlmSpec packed_model(uint32_t query_heads, uint32_t kv_heads) {
  LlmSpec llm = tiny_model("llama", query_heads, kv_heads);
  llm.head_dim = 32;
  return llm;
}
std::vector<LlmSpec> packed_models() { return {packed_model(4, 1), packed_model(3, 3)}; }

struct Kind {
  Format format;
  uint32_t residual;
};
constexpr Kind kKinds[] = {
    {Format::kFp8, 0}, {Format::kInt4, 0}, {Format::kFp4, 0}, {Format::kInt2, kResidual}};

struct PackedDriven : CacheRows {
  PackedDriven(const LlmSpec& given, const Kind& kind, uint64_t seed)
      : CacheRows(given, {.page_tokens = kPackedPage, .pages_gpu = 60, .pages_host = 20, .poison = true},
                  seed) {
    auto made = cpu::PackedCache::make(memory, llm, {kind.format, 32, kind.residual, 512});
    KVT_CHECK(made.has_value());
    cache = std::move(*made);
  }
  const cpu::PackedStore& store() const { return static_cast<cpu::PackedCache&>(*cache).store(); }
  const float* exact_key(uint32_t layer, uint32_t row, uint32_t head) const {
    const auto pages = store().layer(layer);
    return pages.keys +
           pages.at(static_cast<uint32_t>(store().scratch()) + row / kPackedPage, head, row % kPackedPage);
  }
};

// All bytes of a request's first `pages` pages.
std::vector<uint8_t> bytes_of(const PackedDriven& run, RequestId request, size_t pages) {
  std::vector<uint8_t> out;
  for (size_t p = 0; p < pages; ++p) {
    for (uint32_t l = 0; l < run.llm.layers; ++l) {
      for (uint32_t h = 0; h < run.llm.kv_heads; ++h) {
        const auto bytes = run.store().bytes(run.pages(request)[p], l, h);
        out.insert(out.end(), bytes.begin(), bytes.end());
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("Q-1 packed cache: a stored number is at most half a step from the exact one") {
  for (const LlmSpec& llm : packed_models()) {
    PackedDriven run(llm, {Format::kInt4, 0}, 5);
    run.begin(kPackedA);
    run.step({{kPackedA, 100}});
    const PageShape shape{kPackedPage, llm.head_dim, 32};
    for (uint32_t position = 0; position < 100; ++position) {
      const PageId page = run.pages(kPackedA)[position / kPackedPage];
      const auto bytes = run.store().bytes(page, 1, 0);
      const uint32_t each = token_bytes(Format::kInt4, shape);
      const uint8_t* const token = bytes.data() + (position % kPackedPage) * each;
      const float scale = kernels::value_of(1, {kernels::load_u16(token + llm.head_dim / 2), 0});
      const auto pages = run.store().layer(1);
      const float* const read = pages.keys + pages.at(raw(page), 0, position % kPackedPage);
      const float* const exact = run.exact_key(1, position, 0);
      REQUIRE(scale > 0);
      for (uint32_t c = 0; c < llm.head_dim; ++c) {
        // Half a step, and the rounding of scale and zero to fp16 (15 steps of 2^-11 of a scale, 2^-11 of a
        // zero).
        CHECK(std::abs(read[c] - exact[c]) <= scale / 2 + 15 * scale / 2048 + 8.0f / 2048);
      }
    }
  }
}

TEST_CASE("Q-2 packed cache: attention equals attention over the packed bytes") {
  for (const LlmSpec& llm : packed_models()) {
    for (const Kind& kind : kKinds) {
      CAPTURE(std::string(format_name(kind.format)));
      PackedDriven run(llm, kind, 7);
      run.begin(kPackedA);
      run.step({{kPackedA, 90}});
      run.step({{kPackedA, 70}});
      for (int i = 0; i < 5; ++i) run.step({{kPackedA, 1}});
      const uint32_t context = 165;
      // KIVI packs after attention: the step read the entries as they were before it, and its own entry.
      const auto read = [&](uint32_t head) {
        const auto pages = run.store().layer(0);
        std::vector<float> k, v;
        for (const PageId page : run.pages(kPackedA)) {
          const uint64_t first = pages.at(raw(page), head, 0);
          k.insert(k.end(), pages.keys + first, pages.keys + first + kPackedPage * llm.head_dim);
          v.insert(v.end(), pages.values + first, pages.values + first + kPackedPage * llm.head_dim);
        }
        return std::pair(k, v);
      };
      std::vector<std::pair<std::vector<float>, std::vector<float>>> before;
      for (uint32_t h = 0; h < llm.kv_heads; ++h) before.push_back(read(h));
      run.step({{kPackedA, 1}});
      const PageShape shape{kPackedPage, llm.head_dim, 32};
      const auto split = kernels::kivi_split(context, kResidual);
      const uint32_t group = llm.query_heads / llm.kv_heads;
      for (uint32_t h = 0; h < llm.query_heads; ++h) {
        auto [k, v] = before[h / group];
        const auto after = read(h / group);
        const size_t own = size_t{context} * llm.head_dim;
        std::copy_n(after.first.begin() + own, llm.head_dim, k.begin() + own);
        std::copy_n(after.second.begin() + own, llm.head_dim, v.begin() + own);
        std::vector<kernels::PackedRun> runs;
        for (uint32_t at = 0; at <= context; at += kPackedPage) {
          const uint32_t kv_entries = std::min(kPackedPage, context + 1 - at);
          // Here only whole pages of packed keys and values are read as int2 for KIVI.
          const bool packed = kind.residual == 0 || (at + kPackedPage <= split.keys_packed &&
                                                     at + kPackedPage <= split.values_packed);
          if (packed) {
            const auto bytes = run.store().bytes(run.pages(kPackedA)[at / kPackedPage], 0, h / group);
            runs.push_back(kernels::page_run(kind.format, shape, bytes, kv_entries));
          } else {
            runs.push_back({{kernels::Rows::kExact, k.data() + size_t{at} * llm.head_dim},
                            {kernels::Rows::kExact, v.data() + size_t{at} * llm.head_dim},
                            kv_entries});
          }
        }
        std::vector<float> expected(llm.head_dim);
        const float* const q = run.rotated_query(0, 0, h);
        kernels::attend_packed({q, llm.head_dim}, 1 / std::sqrt(static_cast<float>(llm.head_dim)), runs,
                               shape, expected);
        for (uint32_t c = 0; c < llm.head_dim; ++c)
          CHECK(run.output(0, 0, h)[c] == doctest::Approx(expected[c]).epsilon(2e-4));
      }
    }
  }
}

TEST_CASE("packed cache: the stored bytes do not depend on chunks, decoding or pages") {
  for (const LlmSpec& llm : packed_models()) {
    for (const Kind& kind : kKinds) {
      CAPTURE(std::string(format_name(kind.format)));
      const auto stored = [&](const std::vector<uint32_t>& chunks, uint64_t seed) {
        PackedDriven run(llm, kind, seed);
        run.begin(kPackedA);
        for (const uint32_t chunk : chunks) run.step({{kPackedA, chunk}});
        return bytes_of(run, kPackedA, kind.residual ? 4 : 6);  // KIVI: whole packed pages
      };
      const auto whole = stored({200}, 0);
      CHECK(stored({50, 70, 80}, 3) == whole);
      std::vector<uint32_t> decoded(101, 1);
      decoded[0] = 100;
      CHECK(stored(decoded, 4) == whole);
    }
  }
}

TEST_CASE("packed cache: a chunk reads its own tokens exactly, and earlier ones as stored") {
  const LlmSpec llm = packed_models()[0];
  PackedDriven coarse(llm, {Format::kFp4, 0}, 5), fine(llm, {Format::kFp8, 0}, 5);
  coarse.begin(kPackedA), fine.begin(kPackedA);
  coarse.step({{kPackedA, 40}}), fine.step({{kPackedA, 40}});
  CHECK(coarse.outputs() == fine.outputs());  // no stored entry was read
  coarse.step({{kPackedA, 40}}), fine.step({{kPackedA, 40}});
  CHECK(coarse.outputs() != fine.outputs());
}

TEST_CASE("packed cache: a reused prefix has the stored bytes, also after a round trip to the host") {
  for (const LlmSpec& llm : packed_models()) {
    for (const Kind& kind : kKinds) {
      CAPTURE(std::string(format_name(kind.format)));
      PackedDriven run(llm, kind, 6);
      run.begin(kPackedA);
      run.step({{kPackedA, 64}});
      run.step({{kPackedA, 96}});
      const std::vector<PageId> prefix(run.pages(kPackedA).begin(), run.pages(kPackedA).begin() + 3);
      PackedDriven other(llm, kind, 6);  // the same rows, without reuse
      other.begin(kPackedA);
      other.step({{kPackedA, 64}});
      other.step({{kPackedA, 96}});
      std::vector<PageId> host;
      for (uint32_t i = 0; i < 3; ++i) host.push_back(PageId{60 + 2 * i});
      std::vector<PageId> target = {run.take(), run.take(), run.take()};
      run.cache->notify(
          StartTransfer{{}, TransferId{1}, TransferKind::kOffload, Tier::kGpu, Tier::kHost, prefix, host});
      run.cache->notify(
          StartTransfer{{}, TransferId{2}, TransferKind::kLoad, Tier::kHost, Tier::kGpu, host, target});
      run.begin(kPackedB, target);
      other.begin(kPackedB, {other.pages(kPackedA).begin(), other.pages(kPackedA).begin() + 3});
      run.step({{kPackedB, 20}});
      other.step({{kPackedB, 20}});
      CHECK(run.outputs() == other.outputs());
      CHECK(
          std::all_of(run.outputs().begin(), run.outputs().end(), [](float x) { return std::isfinite(x); }));
    }
  }
}
