#include "engine/base/prng.h"

#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <set>
#include <vector>

using namespace kvtwin;

TEST_CASE("prng: the stream is SplitMix64") {
  // The first outputs for seed 1234567 of the published algorithm.
  Prng prng(1234567);
  CHECK(prng.next() == 6457827717110365317u);
  CHECK(prng.next() == 3203168211198807973u);
  CHECK(prng.next() == 9817491932198370423u);
}

TEST_CASE("prng: range holds both of its ends and no value outside") {
  Prng prng(1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1'000; ++i) {
    const uint64_t value = prng.range(3, 7);
    REQUIRE(value >= 3);
    REQUIRE(value <= 7);
    seen.insert(value);
  }
  CHECK(seen.size() == 5);
  CHECK(prng.range(9, 9) == 9);
  prng.range(0, UINT64_MAX);  // the full range does not divide by zero
}

TEST_CASE("prng: chance has the stated probability and is certain at 0 and 1") {
  Prng prng(2);
  int hits = 0;
  for (int i = 0; i < 10'000; ++i) hits += prng.chance(1, 4) ? 1 : 0;
  CHECK(hits > 2'300);
  CHECK(hits < 2'700);
  for (int i = 0; i < 100; ++i) {
    CHECK(!prng.chance(0, 5));
    CHECK(prng.chance(5, 5));
  }
}

TEST_CASE("draw: equal keys give equal bits, and every word of a key matters") {
  static_assert(draw({1, 2, 3}) == draw({1, 2, 3}));
  std::set<uint64_t> seen;
  std::size_t drawn = 0;
  for (uint64_t a = 0; a < 10; ++a) {
    seen.insert(draw({a}));
    ++drawn;
    for (uint64_t b = 0; b < 10; ++b) {
      for (uint64_t c = 0; c < 10; ++c) {
        seen.insert(draw({a, b, c}));  // order matters, and so does length
        ++drawn;
      }
    }
  }
  CHECK(seen.size() == drawn);
}

TEST_CASE("draw: one changed bit of a key changes half of the result") {
  uint64_t flipped = 0;
  const int kKeys = 200;
  for (uint64_t key = 0; key < kKeys; ++key) {
    for (int bit = 0; bit < 64; ++bit) {
      flipped += static_cast<uint64_t>(std::popcount(draw({5, key}) ^ draw({5, key ^ uint64_t{1} << bit})));
    }
  }
  const uint64_t mean_times_100 = flipped * 100 / (kKeys * 64);
  CHECK(mean_times_100 > 3'150);
  CHECK(mean_times_100 < 3'250);
}
