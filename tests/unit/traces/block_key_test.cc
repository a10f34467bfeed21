#include "traces/format/block_key.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "engine/base/prng.h"

using namespace kvtwin;

namespace {

IdRuns runs_of(const std::vector<int64_t>& ids) {
  IdRuns runs;
  for (const int64_t id : ids) append_id(&runs, id, v1::SCOPE_SESSION);
  return runs;
}

std::vector<int64_t> random_ids(Prng* prng) {
  std::vector<int64_t> ids;
  const uint64_t runs = prng->range(0, 5);
  for (uint64_t r = 0; r < runs; ++r) {
    const auto first = static_cast<int64_t>(prng->range(0, 40));
    for (uint64_t k = 0; k < prng->range(1, 6); ++k) ids.push_back(first + static_cast<int64_t>(k));
  }
  return ids;
}

}  // namespace

TEST_CASE("BlockKey: a key survives encoding, and common_blocks counts like a loop over ids") {
  Prng prng(1);
  for (int round = 0; round < 2000; ++round) {
    const auto a = random_ids(&prng), b = random_ids(&prng);
    const IdRuns runs_a = runs_of(a), runs_b = runs_of(b);
    CHECK(blocks_in(runs_a) == a.size());
    uint64_t common = 0;
    while (common < a.size() && common < b.size() && a[common] == b[common]) ++common;
    CHECK(common_blocks(runs_a, runs_b) == common);
    v1::BlockKey key;
    encode_key(runs_a, v1::SCOPE_SESSION, &key);
    const auto decoded = decode_key(key);
    REQUIRE(decoded.has_value());
    CHECK(*decoded == runs_a);
    CHECK(key.scope_size() == 0);
  }
}

TEST_CASE("BlockKey: runs of different scopes keep them, and equal numbers of other scopes differ") {
  const IdRuns mixed{{7, 3, v1::SCOPE_GLOBAL}, {10, 2, v1::SCOPE_SESSION}};
  v1::BlockKey key;
  encode_key(mixed, v1::SCOPE_SESSION, &key);
  CHECK(decode_key(key).value() == mixed);
  CHECK(common_blocks(mixed, runs_of({7, 8, 9})) == 0);
}

TEST_CASE("BlockKey: numbers that leave 64 bits, empty runs and ragged lists are errors") {
  v1::BlockKey key;
  key.add_first_delta(INT64_MIN);
  key.add_count(1);
  CHECK(!decode_key(key).has_value());
  key.set_first_delta(0, 0);
  key.set_count(0, 0);
  CHECK(!decode_key(key).has_value());
  key.set_count(0, 5);
  CHECK(decode_key(key).has_value());
  key.add_count(5);
  CHECK(!decode_key(key).has_value());
}

TEST_CASE("IdSet: counts new ids like a std::set") {
  Prng prng(2);
  for (int round = 0; round < 200; ++round) {
    IdSet set;
    std::set<int64_t> model;
    for (int i = 0; i < 100; ++i) {
      const auto first = static_cast<int64_t>(prng.range(0, 60));
      const auto count = static_cast<uint32_t>(prng.range(0, 12));
      uint64_t added = 0;
      for (uint32_t k = 0; k < count; ++k) added += model.insert(first + k).second;
      CHECK(set.insert(first, count) == added);
      CHECK(set.size() == model.size());
    }
  }
}
