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

TEST_CASE("Q-5 with 4 bits for all tags no int2 page is ever taken, and nothing waits") {
  DualPool pool(PageId{0}, {4, 8}, kPage, PageOrder::kLowestFirst);
  DualPool::Call call;
  const RoleRun prompt[] = {run(1, Semantic::kObs, 100), run(2, Semantic::kUser, 50)};
  REQUIRE(pool.append_prompt(prompt, 2, PrecisionSpec{}, &call));
  CHECK(call.waiting.empty());
  REQUIRE(pool.flush(&call));
  CHECK(call.pages_2.empty());
  CHECK(call.cells_4 == 150);
  CHECK(dual_demand(prompt, 2, PrecisionSpec{}, kPage).pages_4 == call.pages_4.size());
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

namespace {

struct Counts {
  uint32_t refused = 0, aged = 0, spilled = 0;
};

// Four calls that live at random: grow, are flushed, decode, age, end.
class Lives {
 public:
  explicit Lives(uint64_t seed)
      : prng_(seed),
        size_{static_cast<uint32_t>(prng_.range(0, 12)), static_cast<uint32_t>(prng_.range(1, 12))},
        pool_(PageId{static_cast<uint32_t>(prng_.range(0, 50))}, size_, kPage,
              prng_.chance(1, 2) ? PageOrder::kLowestFirst : PageOrder::kOldestFirst) {
    spec_.four_bit_tags = prng_.next() & kAllTags;
    spec_.ageing = prng_.chance(1, 2) ? Ageing::kRequantise : Ageing::kIgnore;
  }

  void step(uint64_t number, Counts* counts) {
    const size_t which = prng_.range(0, 3);
    DualPool::Call& call = calls_[which];
    const uint32_t cells_before = cells_of(call);
    const uint32_t added = change(number, which, counts);
    CHECK(cells_of(call) == cells_before + added);
    const DualPool::Call* const all[] = {&calls_[0], &calls_[1], &calls_[2], &calls_[3]};
    pool_.check_invariants(all);
    // int2, then int4, each page once (check_invariants); Q-4: no int2 page at or above the offset.
    const std::vector<PageId> table = table_of(call);
    CHECK(std::is_partitioned(table.begin(), table.end(), [&](PageId page) { return !pool_.is_int4(page); }));
    CHECK(table.size() == call.pages_2.size() + call.pages_4.size());
    for (const PageId page : call.pages_2) CHECK(!pool_.is_int4(page));
  }

  void end() {
    for (DualPool::Call& call : calls_) pool_.release(100, &call);
    CHECK(pool_.pages_free_2() == size_.pages_2);
    CHECK(pool_.pages_free_4() == size_.pages_4);
  }

 private:
  static uint32_t cells_of(const DualPool::Call& call) {
    return call.cells_4 + call.waiting_cells() + kPage * static_cast<uint32_t>(call.pages_2.size());
  }

  // Cells that the change added (modulo 2^32: less than 0 when the call ends).
  uint32_t change(uint64_t number, size_t which, Counts* counts) {
    DualPool::Call& call = calls_[which];
    const uint64_t kind = prng_.range(0, 9);
    if (kind < 4) return grow(which, counts);
    if (kind < 7)
      return pool_.append_decoded({turns_[which], Modal::kText, Semantic::kAssistant}, &call) ? 1 : 0;
    if (kind == 7) {
      pool_.flush(&call);
      return 0;
    }
    if (kind == 8) {
      std::vector<DualPool::Requantised> done;
      pool_.age(spec_, ++turns_[which], number, &call, &done);
      if (prng_.chance(1, 3)) pool_.reclaim_int4(1, spec_, turns_[which], number, &call, &done);
      counts->aged += static_cast<uint32_t>(done.size());
      return 0;
    }
    const uint32_t gone = cells_of(call);
    counts->spilled += call.spilled;
    pool_.release(number, &call);
    turns_[which] = 0;
    return 0 - gone;
  }

  uint32_t grow(size_t which, Counts* counts) {
    DualPool::Call& call = calls_[which];
    std::vector<RoleRun> runs;
    uint32_t added = 0;
    for (uint64_t n = prng_.range(1, 3); n > 0; --n) {
      runs.push_back({{static_cast<uint32_t>(prng_.range(0, turns_[which])),
                       static_cast<Modal>(prng_.range(0, 1)), static_cast<Semantic>(prng_.range(0, 6))},
                      static_cast<uint32_t>(prng_.range(1, 60))});
      added += runs.back().count;
    }
    const std::vector<PageId> before = table_of(call);
    if (pool_.append_prompt(runs, turns_[which], spec_, &call)) return added;
    ++counts->refused;
    CHECK(table_of(call) == before);
    return 0;
  }

  Prng prng_;
  const DualPoolSize size_;
  DualPool pool_;
  PrecisionSpec spec_;
  std::vector<DualPool::Call> calls_ = std::vector<DualPool::Call>(4);
  std::vector<uint32_t> turns_ = std::vector<uint32_t>(4, 0);
};

}  // namespace

TEST_CASE("Q-3 Q-4 Q-6 the page table is a permutation, int2 never lies above the offset, all pages return") {
  Counts counts;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Lives lives(seed);
    for (uint64_t number = 0; number < 60; ++number) lives.step(number, &counts);
    lives.end();
  }
  // The test would prove little if none of these had happened.
  CHECK(counts.refused > 100);
  CHECK(counts.aged > 20);
  CHECK(counts.spilled > 100);
}
