// IdMap against std::map, under random inserts and erases of ids that lie close together and far apart.

#include "engine/base/id_map.h"

#include <doctest/doctest.h>

#include <map>

#include "engine/base/prng.h"

using namespace kvtwin;

TEST_CASE("id map: finds what was inserted and not erased, whatever the order") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    IdMap map;
    std::map<uint32_t, uint32_t> expected;
    const uint64_t ids = prng.range(1, seed % 2 == 0 ? 40 : UINT32_MAX);
    for (int i = 0; i < 400; ++i) {
      auto id = static_cast<uint32_t>(prng.range(0, ids));
      if (!expected.empty() && prng.chance(1, 2)) {
        const auto from = expected.lower_bound(id);
        id = from == expected.end() ? expected.begin()->first : from->first;
      }
      if (expected.contains(id)) {
        map.erase(id);
        expected.erase(id);
      } else {
        map.insert(id, static_cast<uint32_t>(i));
        expected[id] = static_cast<uint32_t>(i);
      }
      REQUIRE(map.size() == expected.size());
      for (const auto& [there, index] : expected) REQUIRE(map.find(there) == index);
      REQUIRE((ids == UINT32_MAX || map.find(static_cast<uint32_t>(ids + 1)) == IdMap::kNone));
    }
  }
}
