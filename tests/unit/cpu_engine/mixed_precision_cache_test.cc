// MixedPrecisionCache: KV entries of two formats in two pools, driven directly with random rows, the test's
// own policy and pages in shuffled order.

#include "engine/cpu/packed/mixed_precision_cache.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/cpu/packed/packed_cache.h"
#include "kernels/packed/packed_page.h"
#include "tests/unit/cpu_engine/cache_rows.h"
#include "tests/unit/cpu_engine/tiny_models.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr RequestId kMixedPrecisionA{1}, kMixedPrecisionB{2};
constexpr uint32_t kMixedPrecisionPage = 32, kInt2 = 20, kPages = 60;

std::vector<LlmSpec> mixed_precision_models() {
  std::vector<LlmSpec> out = {tiny_model("llama", 4, 1), tiny_model("llama", 3, 3)};
  for (LlmSpec& llm : out) llm.head_dim = 32;
  return out;
}

// Bits of position p of every request: drawn in runs, or 4 everywhere.
struct MixedPrecisionDriven : CacheRows {
  MixedPrecisionDriven(const LlmSpec& given, bool mixed_bits, bool has_int2 = true)
      : CacheRows(
            given,
            {.page_tokens = kMixedPrecisionPage, .pages_gpu = kPages, .pages_host = kPages, .poison = true},
            0),
        mixed(mixed_bits),
        next_2(has_int2 ? 0 : kInt2) {
    auto made = cpu::MixedPrecisionCache::make(memory, given, {kInt2, 32, 512});
    KVT_CHECK(made.has_value());
    cache = std::move(*made);
  }
  const cpu::MixedPrecisionCache& mixed_cache() const {
    return static_cast<const cpu::MixedPrecisionCache&>(*cache);
  }
  bool four(uint32_t position) const { return !mixed || draw({position / 13, 5}) % 2 == 0; }

  struct Filling {
    uint32_t kv = 0, waiting = 0, entries_4 = 0, low_bit = 0;
  };
  void start(RequestId request, uint32_t context = 0, std::vector<PageId> pages = {}) {
    fills[request] = {context, 0, 0, 0};
    reused[request] = std::move(pages);
    fresh.push_back(request);
  }
  // Runs one step: a chunk, whose last token ends the prompt if `ends`, or a decode of one token.
  void go(RequestId request, uint32_t tokens, bool chunk, bool ends = false) {
    Filling& fill = fills.at(request);
    std::vector<FormatRun> runs;
    std::vector<PageAllocation> allocations;
    std::vector<uint64_t> positions;
    const auto take = [&](bool int4) { allocations.push_back({0, 0, PageId{int4 ? next_4++ : next_2++}}); };
    const auto put_4 = [&](uint32_t kv_entries) {
      for (uint32_t i = 0; i < kv_entries; ++i) {
        if (fill.entries_4++ % kMixedPrecisionPage == 0) take(true);
      }
    };
    const uint32_t context = fill.kv;
    for (uint32_t i = 0; i < tokens; ++i) {
      positions.push_back(fill.kv);
      const bool dequantized = !chunk || four(fill.kv++);
      if (!chunk) ++fill.kv;
      if (chunk) runs.push_back({0, 1, dequantized});
      if (dequantized) {
        put_4(1);
      } else if (++fill.waiting == kMixedPrecisionPage) {
        fill.waiting = 0;
        if (next_2 < kInt2)
          take(false);
        else
          put_4(kMixedPrecisionPage);
      }
    }
    if (ends) {
      runs.push_back({0, 0, true});
      put_4(fill.waiting);
      fill.waiting = 0;
    }
    const bool first = std::erase(fresh, request) > 0;
    PlanEntry entry{request, chunk ? EntryKind::kChunk : EntryKind::kDecode, first, false, tokens, context};
    entry.swapped_in = first && returns;
    const PrefixHit prefix_hit{request, reused[request]};
    const size_t prefix_hits = first && context > 0 ? 1 : 0;
    run({.entries = {&entry, 1},
         .allocations = allocations,
         .prefix_hits = {&prefix_hit, prefix_hits},
         .formats = runs,
         .requantisations = requantisations},
        positions);
    requantisations.clear();
  }
  // Pages of the first `count` logical pages, as a prefix hit lists them.
  std::vector<PageId> logical_pages(RequestId request, uint32_t count) const {
    std::vector<PageId> out;
    for (uint32_t logical_page = 0; logical_page < count; ++logical_page) {
      const size_t begin = out.size();
      const auto places = mixed_cache().places(request).subspan(logical_page * kMixedPrecisionPage);
      for (const auto& place : places.first(std::min<size_t>(places.size(), kMixedPrecisionPage))) {
        const PageId page{place.page};
        if (std::find(out.begin() + static_cast<ptrdiff_t>(begin), out.end(), page) == out.end())
          out.push_back(page);
      }
      out.push_back(kNoPage);
    }
    return out;
  }

  const bool mixed;
  bool returns = false;  // requests that start were swapped out
  uint32_t next_2, next_4 = kInt2;
  std::map<RequestId, Filling> fills;
  std::map<RequestId, std::vector<PageId>> reused;
  std::vector<RequestId> fresh;
  std::vector<Requantisation> requantisations;  // of the next step
};

}  // namespace

TEST_CASE("X-1 Q-5 mixed precision cache: with 4 bits for every tag it is the int4 baseline, bit for bit") {
  for (const LlmSpec& llm : mixed_precision_models()) {
    MixedPrecisionDriven mixed_cache(llm, false);
    CacheRows plain(llm, {.page_tokens = kMixedPrecisionPage, .pages_gpu = kPages, .poison = true}, 3);
    auto made = cpu::PackedCache::make(plain.memory, llm, {Format::kInt4, 32, 0, 512});
    REQUIRE(made.has_value());
    plain.cache = std::move(*made);
    mixed_cache.start(kMixedPrecisionA), plain.begin(kMixedPrecisionA);
    for (const uint32_t chunk : {50u, 77u}) {
      mixed_cache.go(kMixedPrecisionA, chunk, true, chunk == 77), plain.step({{kMixedPrecisionA, chunk}});
      CHECK(mixed_cache.outputs() == plain.outputs());
    }
    for (int i = 0; i < 40; ++i) {
      mixed_cache.go(kMixedPrecisionA, 1, false), plain.step({{kMixedPrecisionA, 1}});
      CHECK(mixed_cache.outputs() == plain.outputs());
    }
  }
}

TEST_CASE(
    "Q-2 Q-3 Q-4 X-7 mixed precision cache: decoding equals attention over the packed pages, int2 first, "
    "then int4") {
  for (const LlmSpec& llm : mixed_precision_models()) {
    for (const bool has_int2 : {true, false}) {
      CAPTURE(has_int2);
      MixedPrecisionDriven run(llm, true, has_int2);
      run.start(kMixedPrecisionA);
      run.go(kMixedPrecisionA, 120, true), run.go(kMixedPrecisionA, 130, true, true);
      for (int i = 0; i < 20; ++i) run.go(kMixedPrecisionA, 1, false);
      const std::span<const cpu::MixedPrecisionCache::Place> places =
          run.mixed_cache().places(kMixedPrecisionA);
      REQUIRE(places.size() == 270);
      // every KV entry has its own slot. Q-4: int2 exactly where the policy chose it.
      std::map<uint32_t, uint32_t> kv_entries;
      std::map<std::pair<uint32_t, uint32_t>, uint32_t> seen;
      uint32_t low_bit = 0, tagged = 0;
      for (uint32_t position = 0; position < 250; ++position) tagged += run.four(position) ? 0 : 1;
      for (uint32_t position = 0; position < places.size(); ++position) {
        const auto [page, slot] = places[position];
        CHECK(page < kPages);
        CHECK(seen.emplace(std::pair(page, slot), position).second);
        ++kv_entries[page];
        low_bit += page < kInt2 ? 1 : 0;
        CHECK((page >= kInt2 || !run.four(position)));
      }
      CHECK(low_bit == (has_int2 ? tagged / kMixedPrecisionPage * kMixedPrecisionPage : 0));
      CHECK(tagged > 2 * kMixedPrecisionPage);
      const PageShape shape{kMixedPrecisionPage, llm.head_dim, 32};
      const uint32_t group = llm.query_heads / llm.kv_heads;
      for (uint32_t h = 0; h < llm.query_heads; ++h) {
        std::vector<kernels::PackedRun> runs;
        for (const auto& [page, count] : kv_entries) {  // ascending: int2, then int4
          const Format format = page < kInt2 ? Format::kInt2 : Format::kInt4;
          CHECK((format == Format::kInt4 || count == kMixedPrecisionPage));
          runs.push_back(kernels::page_run(
              format, shape, run.mixed_cache().store().bytes(PageId{page}, 1, h / group), count));
        }
        std::vector<float> expected(llm.head_dim);
        kernels::attend_packed({run.rotated_query(1, 0, h), llm.head_dim},
                               1 / std::sqrt(static_cast<float>(llm.head_dim)), runs, shape, expected);
        for (uint32_t c = 0; c < llm.head_dim; ++c)
          CHECK(run.output(1, 0, h)[c] == doctest::Approx(expected[c]).epsilon(2e-4));
      }
    }
  }
}

TEST_CASE("mixed precision cache: the stored bytes do not depend on chunks") {
  for (const LlmSpec& llm : mixed_precision_models()) {
    const auto read = [&](const std::vector<uint32_t>& chunks) {
      MixedPrecisionDriven run(llm, true);
      run.start(kMixedPrecisionA);
      uint32_t left = 250;
      for (const uint32_t chunk : chunks) run.go(kMixedPrecisionA, chunk, true, (left -= chunk) == 0);
      run.go(kMixedPrecisionA, 1, false);
      return run.outputs();
    };
    const std::vector<float> whole = read({250});
    CHECK(read({120, 130}) == whole);
    CHECK(read({1, 31, 32, 33, 153}) == whole);
    CHECK(std::all_of(whole.begin(), whole.end(), [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE(
    "mixed precision cache: a reused prefix is read as stored, next to other requests' entries in its "
    "pages") {
  for (const LlmSpec& llm : mixed_precision_models()) {
    MixedPrecisionDriven run(llm, true), alone(llm, true);
    for (MixedPrecisionDriven* each : {&run, &alone}) {
      each->start(kMixedPrecisionA);
      each->go(kMixedPrecisionA, 200, true, true);
    }
    run.start(kMixedPrecisionB, 128, run.logical_pages(kMixedPrecisionA, 4));
    run.go(kMixedPrecisionB, 60, true, true);
    // The tokens of kB's 60 positions follow kA's first 128 KV entries, which are packed the same in both.
    alone.start(kMixedPrecisionB, 128, alone.logical_pages(kMixedPrecisionA, 4));
    alone.go(kMixedPrecisionA, 1,
             false);  // its writer concurrently writes to the page in which the prefix ends
    alone.go(kMixedPrecisionB, 60, true, true);
    CHECK(run.outputs() == alone.outputs());
    CHECK(run.mixed_cache().places(kMixedPrecisionB).size() == 188);
    run.cache->notify(DropRequestState{{}, kMixedPrecisionA, DropRequestState::Reason::kFinished});
    run.go(kMixedPrecisionB, 1, false), alone.go(kMixedPrecisionB, 1, false);
    CHECK(run.outputs() == alone.outputs());
  }
}

TEST_CASE(
    "mixed precision cache: a request that was swapped out reads the same in other pages, and fills its int4 "
    "page further") {
  for (const LlmSpec& llm : mixed_precision_models()) {
    MixedPrecisionDriven run(llm, true), stays(llm, true);
    for (MixedPrecisionDriven* each : {&run, &stays}) {
      each->start(kMixedPrecisionA);
      each->go(kMixedPrecisionA, 200, true, true);
      for (int i = 0; i < 5; ++i) each->go(kMixedPrecisionA, 1, false);
    }
    std::vector<PageId> listed = run.logical_pages(kMixedPrecisionA, div_ceil(205u, kMixedPrecisionPage));
    std::vector<PageId> pages, copies, returned;
    for (const PageId page : listed) {
      if (page == kNoPage || std::find(pages.begin(), pages.end(), page) != pages.end()) continue;
      pages.push_back(page);
      copies.push_back(PageId{kPages + static_cast<uint32_t>(copies.size())});
    }
    run.cache->notify(DropRequestState{{}, kMixedPrecisionA, DropRequestState::Reason::kPreempted});
    run.cache->notify(
        StartTransfer{{}, TransferId{1}, TransferKind::kSwapOut, Tier::kGpu, Tier::kHost, pages, copies});
    // Another request overwrites all of its pages.
    const MixedPrecisionDriven::Filling fill = run.fills.at(kMixedPrecisionA);
    run.next_2 = 0, run.next_4 = kInt2;
    run.start(kMixedPrecisionB);
    run.go(kMixedPrecisionB, 300, true, true);
    for (const PageId page : pages) {
      CHECK(raw(page) < (raw(page) < kInt2 ? run.next_2 : run.next_4));
      returned.push_back(PageId{raw(page) < kInt2 ? run.next_2++ : run.next_4++});
    }
    run.cache->notify(
        StartTransfer{{}, TransferId{2}, TransferKind::kSwapIn, Tier::kHost, Tier::kGpu, copies, returned});
    for (PageId& page : listed) {
      const auto at = std::find(pages.begin(), pages.end(), page);
      if (at != pages.end()) page = returned[static_cast<size_t>(at - pages.begin())];
    }
    run.start(kMixedPrecisionA, 205, listed);
    run.fills[kMixedPrecisionA] = fill;
    run.returns = true;
    for (int i = 0; i < 40; ++i) {
      run.go(kMixedPrecisionA, 1, false), stays.go(kMixedPrecisionA, 1, false);
      CHECK(run.outputs() == stays.outputs());
    }
    CHECK(std::count_if(pages.begin(), pages.end(), [](PageId page) { return raw(page) < kInt2; }) > 1);
  }
}

// The KV entries of a head as they are read, [KV entries][head_dim].
static std::vector<float> read_entries(const MixedPrecisionDriven& run, uint32_t head, bool keys,
                                       const std::vector<cpu::MixedPrecisionCache::Place>& places) {
  std::vector<float> out;
  const kernels::KvPages pages = run.mixed_cache().store().layer(1);
  for (const auto& [page, slot] : places) {
    const float* const at = (keys ? pages.keys : pages.values) + pages.at(page, head, slot);
    out.insert(out.end(), at, at + pages.head_dim);
  }
  return out;
}

TEST_CASE(
    "Q-1 mixed precision cache: old KV entries are repacked from their int4 bytes, within half a step of 2 "
    "bits") {
  for (const LlmSpec& llm : mixed_precision_models()) {
    MixedPrecisionDriven run(llm, false);
    run.start(kMixedPrecisionA);
    run.go(kMixedPrecisionA, 128, true, true);
    run.go(kMixedPrecisionA, 1, false);
    const std::vector<cpu::MixedPrecisionCache::Place> before(
        run.mixed_cache().places(kMixedPrecisionA).begin(), run.mixed_cache().places(kMixedPrecisionA).end());
    std::vector<cpu::MixedPrecisionCache::Place> old(before.begin() + 40, before.begin() + 72), aged;
    std::vector<std::vector<float>> was;
    for (uint32_t h = 0; h < llm.kv_heads; ++h) {
      for (const bool keys : {true, false}) was.push_back(read_entries(run, h, keys, old));
    }
    run.cache->notify(DropRequestState{{}, kMixedPrecisionA, DropRequestState::Reason::kFinished});
    // Positions 40 to 71 are in the second and the third int4 page.
    run.requantisations = {{PageId{kInt2 + 1}, PageId{7}, 40, 24}, {PageId{kInt2 + 2}, PageId{7}, 64, 8}};
    run.start(kMixedPrecisionB, 96,
              {PageId{kInt2}, kNoPage, PageId{kInt2 + 1}, PageId{7}, kNoPage, PageId{kInt2 + 2}, PageId{7},
               kNoPage});
    run.go(kMixedPrecisionB, 5, true, true);
    run.go(kMixedPrecisionB, 1, false);
    const std::span<const cpu::MixedPrecisionCache::Place> places =
        run.mixed_cache().places(kMixedPrecisionB);
    for (uint32_t p = 0; p < 96; ++p) {
      const bool moved = p >= 40 && p < 72;
      CHECK(places[p].page == (moved ? 7 : before[p].page));
      CHECK(places[p].slot == (moved ? p - 40 : before[p].slot));
      if (moved) aged.push_back(places[p]);
    }
    const uint32_t dim = llm.head_dim;
    size_t part = 0;
    for (uint32_t h = 0; h < llm.kv_heads; ++h) {
      for (const bool keys : {true, false}) {
        const std::vector<float>& x = was[part++];
        const std::vector<float> y = read_entries(run, h, keys, aged);
        CHECK(x != y);
        for (uint32_t kv_entry = 0; kv_entry < kMixedPrecisionPage; ++kv_entry) {
          for (uint32_t c = 0; c < dim; ++c) {
            float lo = INFINITY,
                  hi = -INFINITY;  // of its group: a channel of 32 keys, 32 channels of a value
            for (uint32_t i = 0; i < 32; ++i) {
              const float other = keys ? x[i * dim + c] : x[kv_entry * dim + c / 32 * 32 + i];
              lo = std::min(lo, other), hi = std::max(hi, other);
            }
            CHECK(std::fabs(y[kv_entry * dim + c] - x[kv_entry * dim + c]) <= (hi - lo) / 6 + 4e-3f);
          }
        }
      }
    }
    CHECK(std::all_of(run.outputs().begin(), run.outputs().end(), [](float v) { return std::isfinite(v); }));
  }
}
