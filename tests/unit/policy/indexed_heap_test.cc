#include "engine/base/indexed_heap.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "engine/base/prng.h"

using namespace kvtwin;

TEST_CASE("indexed heap: agrees with a sorted set under any sequence of adding, re-ranking and removing") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const uint64_t items_max = prng.range(1, 40);
    const uint64_t ranks_max = prng.chance(1, 2) ? 3 : UINT64_MAX;  // few ranks cause many ties
    IndexedHeap heap;
    std::map<uint32_t, uint64_t> rank_of;
    std::set<std::pair<uint64_t, uint32_t>> sorted;
    for (int op = 0; op < 300; ++op) {
      const auto item = static_cast<uint32_t>(prng.range(0, items_max));
      const auto old = rank_of.find(item);
      if (prng.chance(2, 3)) {
        const uint64_t rank = prng.range(0, ranks_max);
        heap.set(item, rank);
        if (old != rank_of.end()) sorted.erase({old->second, item});
        rank_of[item] = rank;
        sorted.insert({rank, item});
      } else {
        heap.remove(item);  // the item may be absent
        if (old != rank_of.end()) {
          sorted.erase({old->second, item});
          rank_of.erase(old);
        }
      }
      REQUIRE(heap.size() == sorted.size());
      REQUIRE(heap.empty() == sorted.empty());
      REQUIRE(heap.contains(item) == rank_of.contains(item));
      if (sorted.empty()) continue;
      REQUIRE(heap.top() == sorted.begin()->second);
      REQUIRE(heap.top_rank() == sorted.begin()->first);
    }
    while (!sorted.empty()) {
      REQUIRE(heap.top() == sorted.begin()->second);
      heap.remove(heap.top());
      sorted.erase(sorted.begin());
    }
    CHECK(heap.empty());
  }
}
