#include "engine/policy/dual_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "engine/base/prng.h"

using namespace kvtwin;

namespace {

constexpr uint32_t kPoolPage = 32;

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

// A pool, and calls with frames of their own: what the Core does with it.
struct Frames {
  Frames(DualPoolSize size, uint32_t frames, bool ages = false) : pool(size, kPoolPage, ages) {
    for (uint32_t i = frames; i > 0; --i) free.push_back(PageId{i - 1});
  }
  struct Call {
    DualPool::Call cells;
    std::vector<PageId> frames;
    uint32_t first = 0;
  };
  static Call call(std::vector<BitRun> bits) {
    Call out;
    for (const BitRun& bit_run : bits) out.cells.prompt += bit_run.count;
    out.cells.bits = std::move(bits);
    return out;
  }
  void begin(Call* call, const std::vector<PageId>& adopted = {}) {
    pages.clear();
    call->first = static_cast<uint32_t>(adopted.size());
    pool.begin(call->first * kPoolPage, adopted, &call->cells, &pages);
  }
  // False: int4 pages are missing, and nothing happened.
  bool append(Call* call, uint32_t tokens) {
    const DualDemand demand = pool.demand(call->cells, tokens, pool.pages_free(false));
    if (demand.pages_4 > pool.pages_free(true)) return false;
    while ((call->first + call->frames.size()) * kPoolPage < call->cells.at + tokens) {
      call->frames.push_back(free.back());
      free.pop_back();
      pool.hold({&call->frames.back(), 1}, true);
      ++held;
    }
    taken.clear(), bits.clear();
    pool.append(tokens, demand.pages_2, {call->frames, call->first}, &call->cells, &taken, &bits);
    CHECK(taken.size() == demand.pages_2 + demand.pages_4);
    return true;
  }
  void end(Call* call) {
    for (const PageId frame : call->frames) {
      pool.release(frame);
      free.push_back(frame);
      --held;
    }
    call->frames.clear();
    DualPool::reset(&call->cells);
  }

  DualPool pool;
  std::vector<PageId> free, taken, pages;
  std::vector<BitRun> bits;
  uint64_t held = 0;
};

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

TEST_CASE("dual pool: roles become runs of bits; what has no role gets 4") {
  std::vector<BitRun> bits;
  const RoleRun roles[] = {run(1, Semantic::kUser, 5), run(1, Semantic::kDelim, 2),
                           run(1, Semantic::kObs, 20)};
  bits_of(roles, 1, 30, observations_in_two(), &bits);
  CHECK(bits == std::vector<BitRun>{{7, true}, {20, false}, {3, true}});
  bits_of(roles, 1, 10, observations_in_two(), &bits);
  CHECK(bits == std::vector<BitRun>{{7, true}, {3, false}});
}

TEST_CASE("dual pool: 2-bit cells come together over chunks, and the rest is flushed at the prompt's end") {
  Frames f({10, 10}, 40);
  Frames::Call call = Frames::call({{5, true}, {20, false}, {2, true}, {50, false}});
  f.begin(&call);
  REQUIRE(f.append(&call, 27));
  CHECK(f.taken == std::vector<PageId>{PageId{10}});
  CHECK(call.cells.waiting.size() == 20);
  CHECK(call.cells.cells_4 == 7);
  REQUIRE(f.append(&call, 50));
  // Cells 27 to 38 and the 20 that waited; 32 more; 6 are flushed into the page of the first seven.
  CHECK(f.taken == std::vector<PageId>{PageId{0}, PageId{1}});
  CHECK(f.bits == std::vector<BitRun>{{50, false}, {0, true}});
  CHECK(call.cells.waiting.empty());
  CHECK(call.cells.cells_4 == 13);
  const DualDemand demand = dual_demand(70, 7, kPoolPage);
  CHECK(demand.pages_2 == call.cells.pages_2);
  CHECK(demand.pages_4 == call.cells.pages_4.size());
  for (int i = 0; i < 20; ++i) REQUIRE(f.append(&call, 1));
  CHECK(call.cells.cells_4 == 33);
  CHECK(call.cells.pages_4 == std::vector<PageId>{PageId{10}, PageId{11}});
  f.pool.check_invariants(f.held);
}

TEST_CASE("dual pool: without int2 pages 2-bit cells spill; 4-bit cells never do the reverse") {
  Frames f({1, 3}, 20);
  Frames::Call two = Frames::call({{96, false}}), four = Frames::call({{33, true}});
  f.begin(&two);
  REQUIRE(f.append(&two, 96));
  CHECK(two.cells.pages_2 == 1);
  CHECK(two.cells.cells_4 == 64);
  CHECK(two.cells.spilled == 64);
  f.begin(&four);
  CHECK(!f.append(&four, 33));  // one int4 page is left, and no int2 page would help
  CHECK(four.cells.pages_4.empty());
  f.end(&two);
  CHECK(f.append(&four, 33));
  f.end(&four);
  CHECK(f.pool.pages_free(false) == 1);
  CHECK(f.pool.pages_free(true) == 3);
}

TEST_CASE("dual pool: a page outlives its call while somebody's frame has cells in it") {
  Frames f({4, 4}, 20);
  Frames::Call writer = Frames::call({{40, true}, {64, false}});
  f.begin(&writer);
  REQUIRE(f.append(&writer, 104));
  // Frame 0 is 4-bit, frame 1 both, frames 2 and 3 (its last 8 are at 96) 2-bit.
  const std::vector<PageId> shared(writer.frames.begin(), writer.frames.begin() + 2);
  Frames::Call reader = Frames::call({{100, true}});
  f.begin(&reader, shared);
  CHECK(reader.cells.adopted_pages == 3);  // two int4 pages, and the int2 page of frame 1's other cells
  CHECK(reader.cells.adopted_cells_2 == 24);
  CHECK(reader.cells.adopted_in_part == 1);  // 8 cells of the second int4 page
  CHECK(std::count(f.pages.begin(), f.pages.end(), kNoPage) == 2);
  CHECK(f.pages.size() == 5);
  for (size_t i = 2; i < writer.frames.size(); ++i) f.pool.release(writer.frames[i]);
  f.held -= 2;
  CHECK(f.pool.pages_free(false) == 3);  // of the second int2 page alone nothing is left
  CHECK(f.pool.pages_loose(true) == 0);
  f.pool.hold(shared, false);
  f.held -= 2;
  CHECK(f.pool.pages_loose(true) == 2);
  CHECK(f.pool.pages_loose(false) == 1);
  f.pool.check_invariants(f.held);
  for (const PageId frame : shared) f.pool.release(frame);
  CHECK(f.pool.pages_free(false) == 4);
  CHECK(f.pool.pages_free(true) == 4);
}

TEST_CASE("dual pool: old cells of a prefix move to int2 pages that they fill, and empty pages go") {
  Frames f({10, 10}, 40, true);
  Frames::Call writer = Frames::call({{100, true}});
  f.begin(&writer);
  REQUIRE(f.append(&writer, 100));  // int4 pages 10 to 13, in order of position
  const std::vector<PageId> prefix(writer.frames.begin(), writer.frames.begin() + 3);
  Frames::Call reader = Frames::call({{40, true}, {60, false}});
  std::vector<CellAgeing> moves;
  const auto age = [&](const std::vector<uint8_t>& alone, uint32_t pages_2) {
    moves.clear();
    f.pool.age(reader.cells, prefix, alone, pages_2, &moves);
    f.pool.check_invariants(f.held);
    return moves.size();
  };
  CHECK(age({1, 0, 1}, 10) == 1);  // 32 cells of frame 2
  REQUIRE(moves.size() == 1);
  CHECK(moves[0].source == PageId{12});
  CHECK(moves[0].target == PageId{0});
  CHECK(moves[0].position == 64);
  CHECK(moves[0].count == 32);
  CHECK(f.pool.pages_free(true) == 7);  // page 12 has nothing left
  CHECK(age({1, 1, 1}, 9) == 0);        // 24 cells fill no page
  reader = Frames::call({{100, false}});
  CHECK(age({1, 1, 1}, 0) == 0);
  CHECK(age({1, 1, 1}, 1) == 1);
  CHECK(f.pool.pages_free(true) == 8);
  f.begin(&reader, prefix);
  CHECK(reader.cells.adopted_cells_2 == 64);
  CHECK(reader.cells.adopted_pages == 3);
  CHECK(reader.cells.adopted_in_part == 0);  // frames 0 and 2 are in int2 pages, frame 1 fills its int4 page
  CHECK(age({1, 1, 1}, 1) == 1);
  CHECK(age({1, 1, 1}, 1) == 0);  // never twice, never back
  CHECK(f.pool.pages_free(true) == 9);
  CHECK(f.pool.pages_free(false) == 7);
  f.end(&writer);
  CHECK(f.pool.pages_free(true) == 10);
  CHECK(f.pool.pages_free(false) == 10);
}

TEST_CASE("Q-6 ageing at random: pages fill whole, frames keep every cell, all pages return") {
  uint64_t aged = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    Frames f({static_cast<uint32_t>(prng.range(1, 12)), 30}, 200, true);
    std::vector<BitRun> bits;
    for (uint64_t n = prng.range(1, 10); n > 0; --n)
      bits.push_back({static_cast<uint32_t>(prng.range(1, 60)), prng.chance(1, 2)});
    Frames::Call writer = Frames::call(bits);
    f.begin(&writer);
    REQUIRE(f.append(&writer, writer.cells.prompt));
    for (int turn = 0; turn < 6; ++turn) {
      for (BitRun& run : writer.cells.bits) run.four = run.four && prng.chance(2, 3);
      std::vector<uint8_t> alone;
      for (size_t i = 0; i < writer.frames.size(); ++i) alone.push_back(prng.chance(3, 4) ? 1 : 0);
      // The last frame may have nothing behind the prompt.
      std::vector<CellAgeing> moves;
      const uint32_t free_2 = f.pool.pages_free(false);
      f.pool.age(writer.cells, writer.frames, alone, static_cast<uint32_t>(prng.range(0, free_2)), &moves);
      std::vector<uint32_t> filled(42, 0);
      for (const CellAgeing& move : moves) {
        CHECK(f.pool.is_int4(move.source));
        CHECK(!f.pool.is_int4(move.target));
        filled[raw(move.target)] += move.count;
        aged += move.count;
      }
      for (const uint32_t cells : filled) CHECK((cells == 0 || cells == kPoolPage));
      f.pool.check_invariants(f.held);
    }
    f.end(&writer);
    CHECK(f.pool.pages_free(true) == 30);
  }
  MESSAGE(aged << " cells aged");
  CHECK(aged > 1000);
}

TEST_CASE("dual pool: decoded cells are taken back as if they had never been") {
  Frames f({2, 6}, 20);
  Frames::Call call = Frames::call({{30, true}});
  f.begin(&call);
  REQUIRE(f.append(&call, 30));
  f.pool.take_ahead(&call.cells);
  f.pool.take_ahead(&call.cells);
  REQUIRE(f.append(&call, 50));
  CHECK(f.taken.empty());
  const DualPool::Frames frames{call.frames, 0};
  f.pool.give_back_page(frames, &call.cells);
  CHECK(call.cells.at == 64);
  f.pool.truncate(35, frames, &call.cells);
  CHECK(call.cells.cells_4 == 35);
  CHECK(call.cells.pages_4.size() == 2);
  f.pool.check_invariants(f.held);
}

TEST_CASE("Q-5 with 4 bits for all tags no int2 page is ever taken, and nothing waits") {
  Frames f({4, 8}, 20);
  std::vector<BitRun> bits;
  const RoleRun roles[] = {run(1, Semantic::kObs, 100), run(2, Semantic::kUser, 50)};
  bits_of(roles, 2, 150, PrecisionSpec{}, &bits);
  Frames::Call call = Frames::call(bits);
  f.begin(&call);
  REQUIRE(f.append(&call, 150));
  CHECK(call.cells.waiting.empty());
  CHECK(call.cells.pages_2 == 0);
  CHECK(call.cells.cells_4 == 150);
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

TEST_CASE(
    "Q-3 Q-4 Q-6 calls at random: every cell has a place or waits, no format strays, all pages return") {
  uint32_t refused = 0, spilled = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const DualPoolSize size{static_cast<uint32_t>(prng.range(0, 12)),
                            static_cast<uint32_t>(prng.range(1, 12))};
    Frames f(size, 400);
    std::vector<Frames::Call> calls(4);
    const auto anew = [&](Frames::Call* call) {
      std::vector<BitRun> bits;
      for (uint64_t n = prng.range(1, 8); n > 0; --n)
        bits.push_back({static_cast<uint32_t>(prng.range(1, 60)), prng.chance(1, 2)});
      *call = Frames::call(bits);
      f.begin(call);
    };
    for (Frames::Call& call : calls) anew(&call);
    for (uint64_t number = 0; number < 60; ++number) {
      Frames::Call& call = calls[prng.range(0, 3)];
      const uint32_t left = call.cells.prompt - std::min(call.cells.prompt, call.cells.at);
      if (prng.chance(1, 10)) {
        spilled += call.cells.spilled;
        f.end(&call);
        anew(&call);
      } else if (!f.append(&call, left == 0 ? 1 : static_cast<uint32_t>(prng.range(1, left)))) {
        ++refused;
      }
      f.pool.check_invariants(f.held);
      const DualPool::Call& cells = call.cells;
      CHECK(cells.cells_4 + cells.waiting.size() + kPoolPage * cells.pages_2 == cells.at);
      CHECK(cells.waiting.size() < kPoolPage);
      CHECK((cells.at < cells.prompt || cells.waiting.empty()));
      for (const PageId page : cells.pages_4) CHECK(f.pool.is_int4(page));
    }
    for (Frames::Call& call : calls) f.end(&call);
    CHECK(f.pool.pages_free(false) == size.pages_2);
    CHECK(f.pool.pages_free(true) == size.pages_4);
  }
  // The test would prove little if neither had happened.
  CHECK(refused > 100);
  CHECK(spilled > 100);
}
