#include "engine/policy/dual_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "engine/base/prng.h"

using namespace kvtwin;

namespace {

constexpr uint32_t kPage = 32;

RoleRun run(uint32_t turn, Semantic semantic, uint32_t count) {
  return {{turn, Modal::kText, semantic}, count};
}

// Observations get 2 bits at any age, all else 4.
PrecisionSpec observations_in_two() {
  PrecisionSpec spec;
  for (uint32_t t = 0; t < kTemporals; ++t) {
    spec.four_bit_tags &= ~(uint64_t{1} << tag_code(static_cast<Temporal>(t), Modal::kText, Semantic::kObs));
  }
  return spec;
}

// Observations get 2 bits from one turn ago on.
PrecisionSpec old_observations_in_two(Ageing ageing) {
  PrecisionSpec spec = observations_in_two();
  spec.four_bit_tags |= uint64_t{1} << tag_code(Temporal::kCurrent, Modal::kText, Semantic::kObs);
  spec.ageing = ageing;
  return spec;
}

std::vector<PageId> table_of(const DualPool::Call& call) {
  std::vector<PageId> pages;
  DualPool::table(call, &pages);
  return pages;
}

}  // namespace

TEST_CASE("dual pool: memory is cut by the bits that are planned, counted with their scales") {
  // B = 2.7: cells 1.3 : 0.7 = 65 % int2; 96 and 160 bytes per cell.
  const uint64_t b = (uint64_t{7} << 32) / 10;
  const DualPoolSize size = split_dual_pool(1'000'000'000, b, 32 * 96, 32 * 160);
  CHECK(size.pages_2 == 171'558);  // 1e9 * 0.65 / (32 * (0.65 * 96 + 0.35 * 160))
  CHECK(size.pages_4 == 92'377);
  CHECK(size.pages_2 * 3072ull + size.pages_4 * 5120ull <= 1'000'000'000);
  CHECK(split_dual_pool(51'200, uint64_t{2} << 32, 3072, 5120).pages_4 == 10);
  CHECK(split_dual_pool(51'200, uint64_t{2} << 32, 3072, 5120).pages_2 == 0);
  CHECK(split_dual_pool(30'720, 0, 3072, 5120).pages_2 == 10);
}

TEST_CASE("dual pool: 2-bit cells come together over chunks, and the rest is flushed to int4") {
  DualPool pool(PageId{100}, {10, 10}, kPage, PageOrder::kLowestFirst);
  const PrecisionSpec spec = observations_in_two();
  DualPool::Call call;
  const RoleRun first[] = {run(1, Semantic::kUser, 5), run(1, Semantic::kObs, 20),
                           run(1, Semantic::kDelim, 2)};
  REQUIRE(pool.append_prompt(first, 1, spec, &call));
  CHECK(call.pages_2.empty());
  CHECK(call.waiting_cells() == 20);
  CHECK(call.cells_4 == 7);
  const RoleRun second[] = {run(1, Semantic::kObs, 50)};
  REQUIRE(pool.append_prompt(second, 1, spec, &call));
  CHECK(call.pages_2 == std::vector<PageId>{PageId{100}, PageId{101}});
  CHECK(call.waiting_cells() == 6);
  REQUIRE(pool.flush(&call));
  CHECK(call.cells_4 == 13);
  CHECK(call.waiting_cells() == 0);
  const DualDemand demand = dual_demand(70, 7, kPage);
  CHECK(demand.pages_2 == call.pages_2.size());
  CHECK(demand.pages_4 == call.pages_4.size());
  for (int i = 0; i < 20; ++i) REQUIRE(pool.append_decoded({1, Modal::kText, Semantic::kObs}, &call));
  CHECK(call.cells_4 == 33);
  CHECK(call.pages_4 == std::vector<PageId>{PageId{110}, PageId{111}});
}

TEST_CASE("dual pool: without int2 pages 2-bit cells spill; 4-bit cells never do the reverse") {
  DualPool pool(PageId{0}, {1, 3}, kPage, PageOrder::kLowestFirst);
  const PrecisionSpec spec = observations_in_two();
  DualPool::Call call;
  const RoleRun two[] = {run(1, Semantic::kObs, 96)};
  REQUIRE(pool.append_prompt(two, 1, spec, &call));
  CHECK(call.pages_2.size() == 1);
  CHECK(call.cells_4 == 64);
  CHECK(call.spilled == 64);
  DualPool::Call other;
  const RoleRun four[] = {run(1, Semantic::kUser, 33)};
  CHECK(!pool.append_prompt(four, 1, spec, &other));  // one int4 page is left, and no int2 page would help
  CHECK(other.pages_4.empty());
  pool.release(1, &call);
  CHECK(pool.append_prompt(four, 1, spec, &other));
  pool.release(2, &other);
  CHECK(pool.pages_free_2() == 1);
  CHECK(pool.pages_free_4() == 3);
}

TEST_CASE("dual pool: ageing turns whole pages of old cells into int2, never decoded ones") {
  DualPool pool(PageId{0}, {8, 8}, kPage, PageOrder::kLowestFirst);
  const PrecisionSpec spec = old_observations_in_two(Ageing::kRequantise);
  DualPool::Call call;
  const RoleRun prompt[] = {run(1, Semantic::kUser, 10), run(1, Semantic::kObs, 100)};
  REQUIRE(pool.append_prompt(prompt, 1, spec, &call));  // all current: int4
  CHECK(call.pages_4.size() == 4);
  for (int i = 0; i < 50; ++i) REQUIRE(pool.append_decoded({1, Modal::kText, Semantic::kObs}, &call));
  std::vector<DualPool::Requantised> done;
  pool.age(spec, 1, 7, &call, &done);
  CHECK(done.empty());
  pool.age(spec, 2, 7, &call, &done);
  // Cells 0-9 are the user's, 32-95 observations only, 110-159 decoded.
  REQUIRE(done.size() == 2);
  CHECK(done[0].source == PageId{9});
  CHECK(done[0].target == PageId{0});
  CHECK(call.cells_4 == 160 - 64);
  CHECK(call.pages_2.size() == 2);
  const DualPool::Call* const calls[] = {&call};
  pool.check_invariants(calls);
  done.clear();
  pool.age(spec, 3, 8, &call, &done);
  CHECK(done.empty());
  PrecisionSpec ignoring = spec;
  ignoring.ageing = Ageing::kIgnore;
  pool.age(ignoring, 9, 8, &call, &done);
  CHECK(done.empty());
}

TEST_CASE("dual pool: int4 pages are reclaimed tag by tag, cheapest first") {
  DualPool pool(PageId{0}, {4, 4}, kPage, PageOrder::kLowestFirst);
  PrecisionSpec spec;  // all 4 bits
  const auto current = [](Semantic s) {
    return static_cast<uint8_t>(tag_code(Temporal::kCurrent, Modal::kText, s));
  };
  std::swap(spec.demote_order[0], spec.demote_order[current(Semantic::kReasoning)]);
  std::swap(spec.demote_order[1], spec.demote_order[current(Semantic::kUser)]);
  DualPool::Call call;
  const RoleRun prompt[] = {run(1, Semantic::kUser, 64), run(1, Semantic::kReasoning, 32),
                            run(1, Semantic::kInst, 32)};
  REQUIRE(pool.append_prompt(prompt, 1, spec, &call));
  std::vector<DualPool::Requantised> done;
  pool.reclaim_int4(2, spec, 1, 5, &call, &done);
  REQUIRE(done.size() == 2);
  CHECK(done[0].source == PageId{6});  // reasoning
  CHECK(done[1].source == PageId{4});  // then the first of the user's
  CHECK(pool.pages_free_4() == 2);
}

TEST_CASE("precision spec: which maps depend on what follows") {
  CHECK(bits_are_prefix_closed(PrecisionSpec{}));
  CHECK(bits_are_prefix_closed(observations_in_two()));
  CHECK(!bits_are_prefix_closed(old_observations_in_two(Ageing::kIgnore)));
  CHECK(bits_are_prefix_closed(old_observations_in_two(Ageing::kForecast)));
  // A forecast gives an observation 2 bits from the start.
  CHECK(!gets_four_bits(old_observations_in_two(Ageing::kForecast), {4, Modal::kText, Semantic::kObs}, 4));
  CHECK(gets_four_bits(old_observations_in_two(Ageing::kIgnore), {4, Modal::kText, Semantic::kObs}, 4));
}

// and conservation, over random lives of random calls.
TEST_CASE("Q-3 Q-4 Q-6 the page table is a permutation, int2 never lies above the offset, all pages return") {
  uint32_t refused = 0, aged = 0, spilled = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const DualPoolSize size{static_cast<uint32_t>(prng.range(0, 12)),
                            static_cast<uint32_t>(prng.range(1, 12))};
    DualPool pool(PageId{static_cast<uint32_t>(prng.range(0, 50))}, size, kPage,
                  prng.chance(1, 2) ? PageOrder::kLowestFirst : PageOrder::kOldestFirst);
    PrecisionSpec spec;
    spec.four_bit_tags = prng.next() & kAllTags;
    spec.ageing = prng.chance(1, 2) ? Ageing::kRequantise : Ageing::kIgnore;
    std::vector<DualPool::Call> calls(4);
    std::vector<uint32_t> turn(4, 0);
    std::vector<DualPool::Requantised> done;
    for (uint64_t step = 0; step < 60; ++step) {
      const size_t which = prng.range(0, 3);
      DualPool::Call& call = calls[which];
      const std::vector<PageId> before = table_of(call);
      const uint32_t cells_before =
          call.cells_4 + call.waiting_cells() + kPage * static_cast<uint32_t>(call.pages_2.size());
      uint32_t added = 0;
      const uint64_t kind = prng.range(0, 9);
      if (kind < 4) {
        std::vector<RoleRun> runs;
        for (uint64_t n = prng.range(1, 3); n > 0; --n) {
          runs.push_back({{static_cast<uint32_t>(prng.range(0, turn[which])),
                           static_cast<Modal>(prng.range(0, 1)), static_cast<Semantic>(prng.range(0, 6))},
                          static_cast<uint32_t>(prng.range(1, 60))});
          added += runs.back().count;
        }
        if (!pool.append_prompt(runs, turn[which], spec, &call)) {
          ++refused;
          added = 0;
          CHECK(table_of(call) == before);
        }
      } else if (kind < 7) {
        const TokenRole role{turn[which], Modal::kText, Semantic::kAssistant};
        added = pool.append_decoded(role, &call) ? 1 : 0;
      } else if (kind == 7) {
        pool.flush(&call);
      } else if (kind == 8) {
        ++turn[which];
        done.clear();
        pool.age(spec, turn[which], step, &call, &done);
        if (prng.chance(1, 3)) pool.reclaim_int4(1, spec, turn[which], step, &call, &done);
        aged += static_cast<uint32_t>(done.size());
      } else {
        spilled += call.spilled;
        pool.release(step, &call);
        turn[which] = 0;
        added = 0 - cells_before;
      }
      CHECK(call.cells_4 + call.waiting_cells() + kPage * static_cast<uint32_t>(call.pages_2.size()) ==
            cells_before + added);
      const DualPool::Call* const all[] = {&calls[0], &calls[1], &calls[2], &calls[3]};
      pool.check_invariants(all);
      // int2 then int4, each page once; Q-4: no int2 page at or above the offset.
      const std::vector<PageId> table = table_of(call);
      CHECK(
          std::is_partitioned(table.begin(), table.end(), [&](PageId page) { return !pool.is_int4(page); }));
      for (const PageId page : call.pages_2) CHECK(!pool.is_int4(page));
      CHECK(table.size() == call.pages_2.size() + call.pages_4.size());
    }
    for (DualPool::Call& call : calls) pool.release(100, &call);
    CHECK(pool.pages_free_2() == size.pages_2);
    CHECK(pool.pages_free_4() == size.pages_4);
  }
  // The test would prove little if none of these had happened.
  CHECK(refused > 100);
  CHECK(aged > 20);
  CHECK(spilled > 100);
}
