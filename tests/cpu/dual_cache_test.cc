// DualCache: cells of two formats in two pools. Driven directly, with random rows, a policy of the test's own
// and pages in shuffled order.

#include "engine/cpu/dual_cache.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/cpu/packed_cache.h"
#include "kernels/packed_page.h"
#include "tests/cpu/cache_rows.h"
#include "tests/cpu/tiny_models.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr CallId kDualA{1}, kDualB{2};
constexpr uint32_t kDualPage = 32, kInt2 = 20, kPages = 60;

std::vector<LlmSpec> dual_models() {
  std::vector<LlmSpec> out = {tiny_model("llama", 4, 1), tiny_model("llama", 3, 3)};
  for (LlmSpec& llm : out) llm.head_dim = 32;
  return out;
}

// Bits of position p of every call: drawn in stretches, or 4 everywhere.
struct DualDriven : CacheRows {
  DualDriven(const LlmSpec& given, bool mixed_bits, bool has_int2 = true)
      : CacheRows(given, {.page_tokens = kDualPage, .pages_gpu = kPages, .poison = true}, 0),
        mixed(mixed_bits),
        next_2(has_int2 ? 0 : kInt2) {
    auto made = cpu::DualCache::make(memory, given, {kInt2, 32, 512});
    KVT_CHECK(made.has_value());
    cache = std::move(*made);
  }
  const cpu::DualCache& dual() const { return static_cast<const cpu::DualCache&>(*cache); }
  bool four(uint32_t position) const { return !mixed || draw({position / 13, 5}) % 2 == 0; }

  struct Filling {
    uint32_t kv = 0, waiting = 0, cells_4 = 0, narrow = 0;
  };
  void start(CallId call, uint32_t context = 0, std::vector<PageId> pages = {}) {
    fills[call] = {context, 0, 0, 0};
    adopted[call] = std::move(pages);
    fresh.push_back(call);
  }
  // One step: a chunk, whose last token ends the prompt if `ends`, or a decode of one token.
  void go(CallId call, uint32_t tokens, bool chunk, bool ends = false) {
    Filling& fill = fills.at(call);
    std::vector<CellRun> runs;
    std::vector<PageGrant> grants;
    std::vector<uint64_t> positions;
    const auto take = [&](bool int4) { grants.push_back({0, 0, PageId{int4 ? next_4++ : next_2++}}); };
    const auto put_4 = [&](uint32_t cells) {
      for (uint32_t i = 0; i < cells; ++i) {
        if (fill.cells_4++ % kDualPage == 0) take(true);
      }
    };
    const uint32_t context = fill.kv;
    for (uint32_t i = 0; i < tokens; ++i) {
      positions.push_back(fill.kv);
      const bool wide = !chunk || four(fill.kv++);
      if (!chunk) ++fill.kv;
      if (chunk) runs.push_back({0, 1, wide});
      if (wide) {
        put_4(1);
      } else if (++fill.waiting == kDualPage) {
        fill.waiting = 0;
        if (next_2 < kInt2)
          take(false);
        else
          put_4(kDualPage);
      }
    }
    if (ends) {
      runs.push_back({0, 0, true});
      put_4(fill.waiting);
      fill.waiting = 0;
    }
    const bool first = std::erase(fresh, call) > 0;
    const PlanEntry entry{call,   chunk ? EntryKind::kChunk : EntryKind::kDecode, first, false, tokens,
                          context};
    const Adoption adoption{call, adopted[call]};
    const size_t adoptions = first && context > 0 ? 1 : 0;
    run({.entries = {&entry, 1},
         .grants = grants,
         .adoptions = {&adoption, adoptions},
         .formats = runs,
         .ageings = ageings},
        positions);
    ageings.clear();
  }
  // Pages of the first `frames` frames, as an adoption names them.
  std::vector<PageId> frames(CallId call, uint32_t count) const {
    std::vector<PageId> out;
    for (uint32_t frame = 0; frame < count; ++frame) {
      const size_t begin = out.size();
      for (uint32_t i = 0; i < kDualPage; ++i) {
        const PageId page{dual().places(call)[frame * kDualPage + i].page};
        if (std::find(out.begin() + static_cast<ptrdiff_t>(begin), out.end(), page) == out.end())
          out.push_back(page);
      }
      out.push_back(kNoPage);
    }
    return out;
  }

  const bool mixed;
  uint32_t next_2, next_4 = kInt2;
  std::map<CallId, Filling> fills;
  std::map<CallId, std::vector<PageId>> adopted;
  std::vector<CallId> fresh;
  std::vector<CellAgeing> ageings;  // of the next step
};

}  // namespace

TEST_CASE("X-1 Q-5 dual cache: with 4 bits for every tag it is the int4 baseline, bit for bit") {
  for (const LlmSpec& llm : dual_models()) {
    DualDriven dual(llm, false);
    CacheRows plain(llm, {.page_tokens = kDualPage, .pages_gpu = kPages, .poison = true}, 3);
    auto made = cpu::PackedCache::make(plain.memory, llm, {Format::kInt4, 32, 0, 512});
    REQUIRE(made.has_value());
    plain.cache = std::move(*made);
    dual.start(kDualA), plain.begin(kDualA);
    for (const uint32_t chunk : {50u, 77u}) {
      dual.go(kDualA, chunk, true, chunk == 77), plain.step({{kDualA, chunk}});
      CHECK(dual.outputs() == plain.outputs());
    }
    for (int i = 0; i < 40; ++i) {
      dual.go(kDualA, 1, false), plain.step({{kDualA, 1}});
      CHECK(dual.outputs() == plain.outputs());
    }
  }
}

TEST_CASE(
    "Q-2 Q-3 Q-4 X-7 dual cache: decoding equals attention over the packed pages, int2 first, then int4") {
  for (const LlmSpec& llm : dual_models()) {
    for (const bool has_int2 : {true, false}) {
      CAPTURE(has_int2);
      DualDriven run(llm, true, has_int2);
      run.start(kDualA);
      run.go(kDualA, 120, true), run.go(kDualA, 130, true, true);
      for (int i = 0; i < 20; ++i) run.go(kDualA, 1, false);
      const std::span<const cpu::DualCache::Place> places = run.dual().places(kDualA);
      REQUIRE(places.size() == 270);
      // every cell has a slot of its own; Q-4: int2 where the policy said so, and nowhere else.
      std::map<uint32_t, uint32_t> cells;
      std::map<std::pair<uint32_t, uint32_t>, uint32_t> seen;
      uint32_t narrow = 0, tagged = 0;
      for (uint32_t position = 0; position < 250; ++position) tagged += run.four(position) ? 0 : 1;
      for (uint32_t position = 0; position < places.size(); ++position) {
        const auto [page, slot] = places[position];
        CHECK(page < kPages);
        CHECK(seen.emplace(std::pair(page, slot), position).second);
        ++cells[page];
        narrow += page < kInt2 ? 1 : 0;
        CHECK((page >= kInt2 || !run.four(position)));
      }
      CHECK(narrow == (has_int2 ? tagged / kDualPage * kDualPage : 0));
      CHECK(tagged > 2 * kDualPage);
      const PageShape shape{kDualPage, llm.head_dim, 32};
      const uint32_t group = llm.query_heads / llm.kv_heads;
      for (uint32_t h = 0; h < llm.query_heads; ++h) {
        std::vector<kernels::PackedRun> runs;
        for (const auto& [page, count] : cells) {  // ascending: int2, then int4
          const Format format = page < kInt2 ? Format::kInt2 : Format::kInt4;
          CHECK((format == Format::kInt4 || count == kDualPage));
          runs.push_back(
              kernels::page_run(format, shape, run.dual().store().bytes(PageId{page}, 1, h / group), count));
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

TEST_CASE("dual cache: what is stored does not depend on chunks") {
  for (const LlmSpec& llm : dual_models()) {
    const auto read = [&](const std::vector<uint32_t>& chunks) {
      DualDriven run(llm, true);
      run.start(kDualA);
      uint32_t left = 250;
      for (const uint32_t chunk : chunks) run.go(kDualA, chunk, true, (left -= chunk) == 0);
      run.go(kDualA, 1, false);
      return run.outputs();
    };
    const std::vector<float> whole = read({250});
    CHECK(read({120, 130}) == whole);
    CHECK(read({1, 31, 32, 33, 153}) == whole);
    CHECK(std::all_of(whole.begin(), whole.end(), [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE(
    "dual cache: an adopted prefix is read as its call stored it, beside what its pages hold of others") {
  for (const LlmSpec& llm : dual_models()) {
    DualDriven run(llm, true), alone(llm, true);
    for (DualDriven* each : {&run, &alone}) {
      each->start(kDualA);
      each->go(kDualA, 200, true, true);
    }
    run.start(kDualB, 128, run.frames(kDualA, 4));
    run.go(kDualB, 60, true, true);
    // The rows of kB's 60 positions behind kA's first 128 cells, which are packed the same in both.
    alone.start(kDualB, 128, alone.frames(kDualA, 4));
    alone.go(kDualA, 1, false);  // its writer goes on meanwhile, in the very page in which the prefix ends
    alone.go(kDualB, 60, true, true);
    CHECK(run.outputs() == alone.outputs());
    CHECK(run.dual().places(kDualB).size() == 188);
    run.cache->told(DropCallState{{}, kDualA, DropCallState::Reason::kFinished});
    run.go(kDualB, 1, false), alone.go(kDualB, 1, false);
    CHECK(run.outputs() == alone.outputs());
  }
}

// What a head's cells read as, [cells][head_dim].
static std::vector<float> read_cells(const DualDriven& run, uint32_t head, bool keys,
                                     const std::vector<cpu::DualCache::Place>& places) {
  std::vector<float> out;
  const kernels::KvPages pages = run.dual().store().layer(1);
  for (const auto& [page, slot] : places) {
    const float* const at = (keys ? pages.keys : pages.values) + pages.at(page, head, slot);
    out.insert(out.end(), at, at + pages.head_dim);
  }
  return out;
}

TEST_CASE("Q-1 dual cache: old cells are packed again from their int4 bytes, within half a step of 2 bits") {
  for (const LlmSpec& llm : dual_models()) {
    DualDriven run(llm, false);
    run.start(kDualA);
    run.go(kDualA, 128, true, true);
    run.go(kDualA, 1, false);
    const std::vector<cpu::DualCache::Place> before(run.dual().places(kDualA).begin(),
                                                    run.dual().places(kDualA).end());
    std::vector<cpu::DualCache::Place> old(before.begin() + 40, before.begin() + 72), aged;
    std::vector<std::vector<float>> was;
    for (uint32_t h = 0; h < llm.kv_heads; ++h) {
      for (const bool keys : {true, false}) was.push_back(read_cells(run, h, keys, old));
    }
    run.cache->told(DropCallState{{}, kDualA, DropCallState::Reason::kFinished});
    // Positions 40 to 71 lie in the second and the third int4 page.
    run.ageings = {{PageId{kInt2 + 1}, PageId{7}, 40, 24}, {PageId{kInt2 + 2}, PageId{7}, 64, 8}};
    run.start(kDualB, 96,
              {PageId{kInt2}, kNoPage, PageId{kInt2 + 1}, PageId{7}, kNoPage, PageId{kInt2 + 2}, PageId{7},
               kNoPage});
    run.go(kDualB, 5, true, true);
    run.go(kDualB, 1, false);
    const std::span<const cpu::DualCache::Place> places = run.dual().places(kDualB);
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
        const std::vector<float> y = read_cells(run, h, keys, aged);
        CHECK(x != y);
        for (uint32_t cell = 0; cell < kDualPage; ++cell) {
          for (uint32_t c = 0; c < dim; ++c) {
            float lo = INFINITY,
                  hi = -INFINITY;  // of its group: a channel of 32 keys, 32 channels of a value
            for (uint32_t i = 0; i < 32; ++i) {
              const float other = keys ? x[i * dim + c] : x[cell * dim + c / 32 * 32 + i];
              lo = std::min(lo, other), hi = std::max(hi, other);
            }
            CHECK(std::fabs(y[cell * dim + c] - x[cell * dim + c]) <= (hi - lo) / 6 + 4e-3f);
          }
        }
      }
    }
    CHECK(std::all_of(run.outputs().begin(), run.outputs().end(), [](float v) { return std::isfinite(v); }));
  }
}
