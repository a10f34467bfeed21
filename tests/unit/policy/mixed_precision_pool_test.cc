#include "engine/kv/store/mixed_precision_pool.h"

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

// Observations get 2 bits at any age, all other tokens 4.
PrecisionSpec observations_in_two() {
  PrecisionSpec spec;
  for (uint32_t t = 0; t < kTemporals; ++t) {
    spec.four_bit_tags &= ~(uint64_t{1} << tag_code(static_cast<Temporal>(t), Modal::kText, Semantic::kObs));
  }
  return spec;
}

// Observations get 2 bits from an age of one turn on.
PrecisionSpec old_observations_in_two(Ageing ageing) {
  PrecisionSpec spec = observations_in_two();
  spec.four_bit_tags |= uint64_t{1} << tag_code(Temporal::kCurrent, Modal::kText, Semantic::kObs);
  spec.ageing = ageing;
  return spec;
}

// A pool and requests with logical pages of their own, as the scheduler uses them.
struct LogicalPages {
  LogicalPages(MixedPrecisionPoolSize size, uint32_t logical_pages, bool ages = false,
               const MixedPrecisionHost& host = {})
      : pool(size, kPoolPage, ages, host) {
    for (uint32_t i = logical_pages; i > 0; --i) free.push_back(PageId{i - 1});
  }
  struct Request {
    MixedPrecisionPool::Request kv_entries;
    std::vector<PageId> logical_pages;
    uint32_t first = 0;
  };
  static Request request(std::vector<BitRun> bits) {
    Request out;
    for (const BitRun& bit_run : bits) out.kv_entries.prompt += bit_run.count;
    out.kv_entries.bits = std::move(bits);
    return out;
  }
  void begin(Request* request, const std::vector<PageId>& reused = {}) {
    pages.clear();
    request->first = static_cast<uint32_t>(reused.size());
    pool.begin(request->first * kPoolPage, reused, &request->kv_entries, &pages);
  }
  // Returns false and changes nothing if int4 pages are missing.
  bool append(Request* request, uint32_t tokens) {
    const MixedPrecisionDemand demand = pool.demand(request->kv_entries, tokens, pool.pages_free(false));
    if (demand.pages_4 > pool.pages_free(true)) return false;
    while ((request->first + request->logical_pages.size()) * kPoolPage < request->kv_entries.at + tokens) {
      request->logical_pages.push_back(free.back());
      free.pop_back();
      pool.hold({&request->logical_pages.back(), 1}, true);
      ++held;
    }
    taken.clear(), bits.clear();
    pool.append(tokens, demand.pages_2, {request->logical_pages, request->first}, &request->kv_entries,
                &taken, &bits);
    CHECK(taken.size() == demand.pages_2 + demand.pages_4);
    return true;
  }
  void end(Request* request) {
    for (const PageId logical_page : request->logical_pages) {
      pool.freed(logical_page);
      free.push_back(logical_page);
      --held;
    }
    request->logical_pages.clear();
    MixedPrecisionPool::reset(&request->kv_entries);
  }

  MixedPrecisionPool pool;
  std::vector<PageId> free, taken, pages;
  std::vector<BitRun> bits;
  uint64_t held = 0;
};

}  // namespace

TEST_CASE("mixed precision pool: memory is divided by the planned bits, scales included") {
  // B = 2.7: KV entries 1.3 : 0.7 = 65 % int2; 96 and 160 bytes per KV entry.
  const uint64_t b = (uint64_t{7} << 32) / 10;
  const MixedPrecisionPoolSize size = split_mixed_precision_pool(1'000'000'000, b, 32 * 96, 32 * 160);
  CHECK(size.pages_2 == 171'558);  // 1e9 * 0.65 / (32 * (0.65 * 96 + 0.35 * 160))
  CHECK(size.pages_4 == 92'377);
  CHECK(size.pages_2 * 3072ull + size.pages_4 * 5120ull <= 1'000'000'000);
  CHECK(split_mixed_precision_pool(51'200, uint64_t{2} << 32, 3072, 5120).pages_4 == 10);
  CHECK(split_mixed_precision_pool(51'200, uint64_t{2} << 32, 3072, 5120).pages_2 == 0);
  CHECK(split_mixed_precision_pool(30'720, 0, 3072, 5120).pages_2 == 10);
}

TEST_CASE("mixed precision pool: roles become runs of bits, and tokens without a role get 4") {
  std::vector<BitRun> bits;
  const RoleRun roles[] = {run(1, Semantic::kUser, 5), run(1, Semantic::kDelim, 2),
                           run(1, Semantic::kObs, 20)};
  bits_of(roles, 1, 30, observations_in_two(), &bits);
  CHECK(bits == std::vector<BitRun>{{7, true}, {20, false}, {3, true}});
  bits_of(roles, 1, 10, observations_in_two(), &bits);
  CHECK(bits == std::vector<BitRun>{{7, true}, {3, false}});
}

TEST_CASE(
    "mixed precision pool: 2-bit KV entries are collected over chunks, and the rest is flushed at the "
    "prompt's end") {
  LogicalPages f({10, 10}, 40);
  LogicalPages::Request request = LogicalPages::request({{5, true}, {20, false}, {2, true}, {50, false}});
  f.begin(&request);
  REQUIRE(f.append(&request, 27));
  CHECK(f.taken == std::vector<PageId>{PageId{10}});
  CHECK(request.kv_entries.waiting.size() == 20);
  CHECK(request.kv_entries.entries_4 == 7);
  REQUIRE(f.append(&request, 50));
  // KV entries 27 to 38 and the 20 that waited; then 32 more; 6 are flushed into the page of the first seven.
  CHECK(f.taken == std::vector<PageId>{PageId{0}, PageId{1}});
  CHECK(f.bits == std::vector<BitRun>{{50, false}, {0, true}});
  CHECK(request.kv_entries.waiting.empty());
  CHECK(request.kv_entries.entries_4 == 13);
  // 70 KV entries of 2 bits in pages of 32: two pages are full, and 6 are with the 7 of 4 bits.
  CHECK(request.kv_entries.pages_2 == 2);
  CHECK(request.kv_entries.pages_4.size() == 1);
  for (int i = 0; i < 20; ++i) REQUIRE(f.append(&request, 1));
  CHECK(request.kv_entries.entries_4 == 33);
  CHECK(request.kv_entries.pages_4 == std::vector<PageId>{PageId{10}, PageId{11}});
  f.pool.check_invariants(f.held);
}

TEST_CASE(
    "mixed precision pool: without int2 pages 2-bit KV entries go to int4 pages; 4-bit entries never go to "
    "int2") {
  LogicalPages f({1, 3}, 20);
  LogicalPages::Request two = LogicalPages::request({{96, false}}),
                        four = LogicalPages::request({{33, true}});
  f.begin(&two);
  REQUIRE(f.append(&two, 96));
  CHECK(two.kv_entries.pages_2 == 1);
  CHECK(two.kv_entries.entries_4 == 64);
  CHECK(two.kv_entries.spilled == 64);
  f.begin(&four);
  CHECK(!f.append(&four, 33));  // one int4 page is left, and an int2 page would not help
  CHECK(four.kv_entries.pages_4.empty());
  f.end(&two);
  CHECK(f.append(&four, 33));
  f.end(&four);
  CHECK(f.pool.pages_free(false) == 1);
  CHECK(f.pool.pages_free(true) == 3);
}

TEST_CASE(
    "mixed precision pool: a page outlives its request while a logical page in use has KV entries in it") {
  LogicalPages f({4, 4}, 20);
  LogicalPages::Request writer = LogicalPages::request({{40, true}, {64, false}});
  f.begin(&writer);
  REQUIRE(f.append(&writer, 104));
  // Logical page 0 is 4-bit, 1 has both formats, 2 and 3 are 2-bit (the last 8 tokens start at 96).
  const std::vector<PageId> shared(writer.logical_pages.begin(), writer.logical_pages.begin() + 2);
  LogicalPages::Request reader = LogicalPages::request({{100, true}});
  f.begin(&reader, shared);
  CHECK(reader.kv_entries.reused_pages ==
        3);  // two int4 pages, and the int2 page of the other KV entries of logical page 1
  CHECK(reader.kv_entries.reused_entries_2 == 24);
  CHECK(reader.kv_entries.reused_in_part == 1);  // 8 KV entries of the second int4 page
  CHECK(std::count(f.pages.begin(), f.pages.end(), kNoPage) == 2);
  CHECK(f.pages.size() == 5);
  for (size_t i = 2; i < writer.logical_pages.size(); ++i) f.pool.freed(writer.logical_pages[i]);
  f.held -= 2;
  CHECK(f.pool.pages_free(false) == 3);  // the second int2 page alone is empty
  CHECK(f.pool.pages_evictable(true) == 0);
  f.pool.hold(shared, false);
  f.held -= 2;
  CHECK(f.pool.pages_evictable(true) == 2);
  CHECK(f.pool.pages_evictable(false) == 1);
  f.pool.check_invariants(f.held);
  for (const PageId logical_page : shared) f.pool.freed(logical_page);
  CHECK(f.pool.pages_free(false) == 4);
  CHECK(f.pool.pages_free(true) == 4);
}

TEST_CASE(
    "mixed precision pool: old KV entries of a prefix move to int2 pages that they fill, and empty pages are "
    "freed") {
  LogicalPages f({10, 10}, 40, true);
  LogicalPages::Request writer = LogicalPages::request({{100, true}});
  f.begin(&writer);
  REQUIRE(f.append(&writer, 100));  // int4 pages 10 to 13, in order of position
  const std::vector<PageId> prefix(writer.logical_pages.begin(), writer.logical_pages.begin() + 3);
  LogicalPages::Request reader = LogicalPages::request({{40, true}, {60, false}});
  std::vector<Requantisation> moves;
  const auto age = [&](const std::vector<uint8_t>& alone, uint32_t pages_2) {
    moves.clear();
    f.pool.age(reader.kv_entries, prefix, alone, pages_2, &moves);
    f.pool.check_invariants(f.held);
    return moves.size();
  };
  CHECK(age({1, 0, 1}, 10) == 1);  // 32 KV entries of logical page 2
  REQUIRE(moves.size() == 1);
  CHECK(moves[0].source == PageId{12});
  CHECK(moves[0].target == PageId{0});
  CHECK(moves[0].position == 64);
  CHECK(moves[0].count == 32);
  CHECK(f.pool.pages_free(true) == 7);  // page 12 is empty
  CHECK(age({1, 1, 1}, 9) == 0);        // 24 KV entries do not fill a page
  reader = LogicalPages::request({{100, false}});
  CHECK(age({1, 1, 1}, 0) == 0);
  CHECK(age({1, 1, 1}, 1) == 1);
  CHECK(f.pool.pages_free(true) == 8);
  f.begin(&reader, prefix);
  CHECK(reader.kv_entries.reused_entries_2 == 64);
  CHECK(reader.kv_entries.reused_pages == 3);
  CHECK(reader.kv_entries.reused_in_part ==
        0);  // logical pages 0 and 2 are in int2 pages, logical page 1 fills its int4 page
  CHECK(age({1, 1, 1}, 1) == 1);
  CHECK(age({1, 1, 1}, 1) == 0);  // never twice, never back
  CHECK(f.pool.pages_free(true) == 9);
  CHECK(f.pool.pages_free(false) == 7);
  f.end(&writer);
  CHECK(f.pool.pages_free(true) == 10);
  CHECK(f.pool.pages_free(false) == 10);
}

TEST_CASE("Q-6 ageing at random: pages fill whole, logical pages keep every KV entry, all pages return") {
  uint64_t aged = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    LogicalPages f({static_cast<uint32_t>(prng.range(1, 12)), 30}, 200, true);
    std::vector<BitRun> bits;
    for (uint64_t n = prng.range(1, 10); n > 0; --n)
      bits.push_back({static_cast<uint32_t>(prng.range(1, 60)), prng.chance(1, 2)});
    LogicalPages::Request writer = LogicalPages::request(bits);
    f.begin(&writer);
    REQUIRE(f.append(&writer, writer.kv_entries.prompt));
    for (int turn = 0; turn < 6; ++turn) {
      for (BitRun& run : writer.kv_entries.bits) run.four = run.four && prng.chance(2, 3);
      std::vector<uint8_t> alone;
      for (size_t i = 0; i < writer.logical_pages.size(); ++i) alone.push_back(prng.chance(3, 4) ? 1 : 0);
      // The last logical page may have no tokens after the prompt.
      std::vector<Requantisation> moves;
      const uint32_t free_2 = f.pool.pages_free(false);
      f.pool.age(writer.kv_entries, writer.logical_pages, alone, static_cast<uint32_t>(prng.range(0, free_2)),
                 &moves);
      std::vector<uint32_t> filled(42, 0);
      for (const Requantisation& move : moves) {
        CHECK(f.pool.is_int4(move.source));
        CHECK(!f.pool.is_int4(move.target));
        filled[raw(move.target)] += move.count;
        aged += move.count;
      }
      for (const uint32_t kv_entries : filled) CHECK((kv_entries == 0 || kv_entries == kPoolPage));
      f.pool.check_invariants(f.held);
    }
    f.end(&writer);
    CHECK(f.pool.pages_free(true) == 30);
  }
  MESSAGE(aged << " KV entries aged");
  CHECK(aged > 1000);
}

TEST_CASE("mixed precision pool: decoded KV entries are rolled back exactly") {
  LogicalPages f({2, 6}, 20);
  LogicalPages::Request request = LogicalPages::request({{30, true}});
  f.begin(&request);
  REQUIRE(f.append(&request, 30));
  f.pool.take_ahead(&request.kv_entries);
  f.pool.take_ahead(&request.kv_entries);
  REQUIRE(f.append(&request, 50));
  CHECK(f.taken.empty());
  const MixedPrecisionPool::LogicalPages logical_pages{request.logical_pages, 0};
  f.pool.roll_back_page(logical_pages, &request.kv_entries);
  CHECK(request.kv_entries.at == 64);
  f.pool.truncate(35, logical_pages, &request.kv_entries);
  CHECK(request.kv_entries.entries_4 == 35);
  CHECK(request.kv_entries.pages_4.size() == 2);
  f.pool.check_invariants(f.held);
}

TEST_CASE("Q-5 with 4 bits for all tags no int2 page is ever allocated, and no KV entry waits") {
  LogicalPages f({4, 8}, 20);
  std::vector<BitRun> bits;
  const RoleRun roles[] = {run(1, Semantic::kObs, 100), run(2, Semantic::kUser, 50)};
  bits_of(roles, 2, 150, PrecisionSpec{}, &bits);
  LogicalPages::Request request = LogicalPages::request(bits);
  f.begin(&request);
  REQUIRE(f.append(&request, 150));
  CHECK(request.kv_entries.waiting.empty());
  CHECK(request.kv_entries.pages_2 == 0);
  CHECK(request.kv_entries.entries_4 == 150);
}

TEST_CASE("precision spec: the maps that depend on later tokens are known") {
  CHECK(bits_are_prefix_closed(PrecisionSpec{}));
  CHECK(bits_are_prefix_closed(observations_in_two()));
  CHECK(!bits_are_prefix_closed(old_observations_in_two(Ageing::kIgnore)));
  CHECK(bits_are_prefix_closed(old_observations_in_two(Ageing::kForecast)));
  // With a forecast an observation gets 2 bits from the start.
  CHECK(!gets_four_bits(old_observations_in_two(Ageing::kForecast), {4, Modal::kText, Semantic::kObs}, 4));
  CHECK(gets_four_bits(old_observations_in_two(Ageing::kIgnore), {4, Modal::kText, Semantic::kObs}, 4));
}

TEST_CASE(
    "Q-3 Q-4 Q-6 requests at random: every KV entry has a slot or waits, no format is mixed up, all pages "
    "return") {
  uint32_t refused = 0, spilled = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const MixedPrecisionPoolSize size{static_cast<uint32_t>(prng.range(0, 12)),
                                      static_cast<uint32_t>(prng.range(1, 12))};
    LogicalPages f(size, 400);
    std::vector<LogicalPages::Request> requests(4);
    const auto anew = [&](LogicalPages::Request* request) {
      std::vector<BitRun> bits;
      for (uint64_t n = prng.range(1, 8); n > 0; --n)
        bits.push_back({static_cast<uint32_t>(prng.range(1, 60)), prng.chance(1, 2)});
      *request = LogicalPages::request(bits);
      f.begin(request);
    };
    for (LogicalPages::Request& request : requests) anew(&request);
    for (uint64_t number = 0; number < 60; ++number) {
      LogicalPages::Request& request = requests[prng.range(0, 3)];
      const uint32_t left =
          request.kv_entries.prompt - std::min(request.kv_entries.prompt, request.kv_entries.at);
      if (prng.chance(1, 10)) {
        spilled += request.kv_entries.spilled;
        f.end(&request);
        anew(&request);
      } else if (!f.append(&request, left == 0 ? 1 : static_cast<uint32_t>(prng.range(1, left)))) {
        ++refused;
      }
      f.pool.check_invariants(f.held);
      const MixedPrecisionPool::Request& kv_entries = request.kv_entries;
      CHECK(kv_entries.entries_4 + kv_entries.waiting.size() + kPoolPage * kv_entries.pages_2 ==
            kv_entries.at);
      CHECK(kv_entries.waiting.size() < kPoolPage);
      CHECK((kv_entries.at < kv_entries.prompt || kv_entries.waiting.empty()));
      for (const PageId page : kv_entries.pages_4) CHECK(f.pool.is_int4(page));
    }
    for (LogicalPages::Request& request : requests) f.end(&request);
    CHECK(f.pool.pages_free(false) == size.pages_2);
    CHECK(f.pool.pages_free(true) == size.pages_4);
  }
  // The test proves little unless both happened.
  CHECK(refused > 100);
  CHECK(spilled > 100);
}

TEST_CASE(
    "mixed precision pool: copies share host pages, and a page is copied again once entries were added") {
  PagePool host(PageId{20}, 8, PageOrder::kLowestFirst);
  const PageTiers tiers{.host = &host};
  LogicalPages f({10, 10}, 40, false, {&tiers, PageId{100}, 8});
  LogicalPages::Request request = LogicalPages::request({{16, true}, {32, false}, {80, true}});
  f.begin(&request);
  std::vector<PageId> source, target;
  const auto copy = [&](PageId logical_page) {
    const PageId number = f.pool.copies()->acquire();
    REQUIRE(f.pool.has_room(logical_page));
    f.pool.copying(logical_page, number);
    f.pool.resolve(&source, &target);
    f.pool.arrived({&number, 1}, target);
    f.pool.check_invariants(f.held);
    return number;
  };
  REQUIRE(f.append(&request, 48));  // int4 page 10 is filled to half, int2 page 0 has KV entries of both
  const PageId first = copy(request.logical_pages[0]);
  CHECK(source == std::vector<PageId>{PageId{10}, PageId{0}});
  CHECK(target == std::vector<PageId>{PageId{20}, PageId{21}});
  REQUIRE(f.append(&request, 80));
  const PageId second = copy(request.logical_pages[1]);
  CHECK(source == std::vector<PageId>{PageId{10}});
  CHECK(target == std::vector<PageId>{PageId{22}});
  CHECK(f.pool.pages_host() == 3);

  // Pages 10 and 0 hold these two logical pages alone.
  const std::vector<PageId> cached = {request.logical_pages[0], request.logical_pages[1]};
  const uint32_t free = f.pool.pages_free(false) + f.pool.pages_free(true);
  CHECK(f.pool.pages_spare() == free);
  f.pool.hold(cached, false);
  CHECK(f.pool.pages_spare() == free + 2);
  for (const PageId logical_page : cached) f.pool.freed(logical_page);
  f.held -= 2;
  CHECK(f.pool.pages_spare() == free + 2);

  const std::vector<PageId> copies = {first, second}, loaded = {PageId{38}, PageId{39}};
  CHECK(f.pool.demand_of_load(copies).pages_2 == 1);
  CHECK(f.pool.demand_of_load(copies).pages_4 == 2);
  f.pool.hold(loaded, true);
  f.held += 2;
  source.clear(), target.clear();
  f.pool.load(copies, loaded, &source, &target);
  CHECK(source == std::vector<PageId>{PageId{20}, PageId{21}, PageId{22}});
  CHECK(std::count_if(target.begin(), target.end(), [&](PageId page) { return f.pool.is_int4(page); }) == 2);
  f.pool.check_invariants(f.held);
  f.pool.copy_freed(first);
  CHECK(f.pool.pages_host() == 2);  // the int2 page has KV entries of the other
  f.pool.copy_freed(second);
  CHECK(host.pages_free() == 8);
  f.pool.check_invariants(f.held);
}
