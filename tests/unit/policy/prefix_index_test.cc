// Single cases of PrefixIndex; tests/property/structures compares it with an obviously correct index.

#include "engine/kv/store/prefix_index.h"

#include <doctest/doctest.h>

#include <vector>

using namespace kvtwin;

namespace {

constexpr uint64_t kShared = 0;

struct Bench {
  explicit Bench(uint32_t pages_gpu, uint32_t pages_host = 0,
                 std::unique_ptr<PrefixEviction> eviction = make_lru_eviction())
      : gpu(PageId{0}, pages_gpu, PageOrder::kLowestFirst),
        host(PageId{100}, pages_host, PageOrder::kLowestFirst),
        index(1, &gpu, pages_host > 0 ? &host : nullptr, std::move(eviction)) {}

  // Caches the units [0, count) of `space`.
  void cache(uint64_t space, uint32_t count) {
    const std::vector<UnitRun> identity{{space, 0, count}};
    Pin pin = index.acquire(kShared, identity, count).pin;
    std::vector<PageId> pages;
    while (pin.pages + pages.size() < count) pages.push_back(gpu.acquire());
    CHECK(index.insert(kShared, identity, pages, &pin));
    index.release(pin, true);
  }
  Match find(uint64_t space, uint32_t count) {
    const std::vector<UnitRun> identity{{space, 0, count}};
    const Match match = index.acquire(kShared, identity, count);
    index.release(match.pin, false);
    return match;
  }
  uint32_t has_copy(uint32_t pages_max) {
    Pin pin;
    uint32_t first = 0;
    std::vector<PageId> source, target;
    const auto started = index.start_offload(pages_max, &pin, &first, &source, &target);
    if (started != PrefixIndex::Offload::kStarted) return 0;
    index.offloaded(pin, first, target);
    return static_cast<uint32_t>(target.size());
  }
  void evict() { gpu.release(index.evict_gpu_page(), index.tick()); }

  PagePool gpu, host;
  PrefixIndex index;
};

}  // namespace

TEST_CASE("prefix index: the least recently used path is evicted first, from its tail") {
  Bench bench(8);
  bench.cache(1, 2);  // pages 0 1
  bench.cache(2, 2);  // pages 2 3
  bench.cache(1, 2);  // used again
  CHECK(bench.index.evict_gpu_page() == PageId{3});
  CHECK(bench.index.evict_gpu_page() == PageId{2});
  CHECK(bench.index.evict_gpu_page() == PageId{1});
  CHECK(bench.find(1, 2).pin.pages == 1);
}

TEST_CASE("prefix index: under LFU one more use outweighs recency") {
  Bench bench(8, 0, make_lfu_eviction());
  bench.cache(1, 1);  // page 0
  bench.cache(1, 1);
  bench.cache(2, 1);  // page 1, used once, and last
  CHECK(bench.index.evict_gpu_page() == PageId{1});
  CHECK(bench.index.evict_gpu_page() == PageId{0});
}

TEST_CASE("prefix index: a lookup that does not count as a use keeps the age") {
  Bench bench(8);
  bench.cache(1, 1);
  bench.cache(2, 1);
  bench.find(1, 1);
  CHECK(bench.index.evict_gpu_page() == PageId{0});
}

TEST_CASE("prefix index: a page that has a copy leaves the GPU before one that has none") {
  Bench bench(8, 8);
  bench.cache(1, 2);
  CHECK(bench.has_copy(8) == 2);
  bench.cache(2, 1);
  bench.cache(1, 2);  // the copies' path was used last
  CHECK(bench.index.evict_gpu_page() == PageId{1});
  CHECK(bench.index.evict_gpu_page() == PageId{0});
  CHECK(bench.find(1, 2).pin.pages == 2);
  CHECK(bench.find(1, 2).pages_gpu == 0);
}

// Found by the property test: only the last page of the node was cut off, and its copies remained.
TEST_CASE("prefix index: evicting a page without a copy frees the copies after it") {
  Bench bench(4, 4);
  bench.cache(1, 4);
  CHECK(bench.has_copy(2) == 2);  // pages 2 and 3
  bench.evict();
  bench.evict();  // they are on the host only now
  CHECK(bench.find(1, 4).pin.pages == 4);
  CHECK(bench.find(1, 4).pages_gpu == 2);
  bench.evict();  // page 1: 2 and 3 are unreachable now
  bench.index.check_invariants();
  CHECK(bench.find(1, 4).pin.pages == 1);
  CHECK(bench.index.pages_host() == 0);
  CHECK(bench.host.pages_free() == 4);
}

TEST_CASE("prefix index: offloading makes room on the host by dropping the oldest copies") {
  Bench bench(4, 2);
  bench.cache(1, 2);
  CHECK(bench.has_copy(2) == 2);
  bench.evict();
  bench.evict();
  bench.cache(2, 2);
  CHECK(bench.has_copy(1) == 1);
  CHECK(bench.find(1, 2).pin.pages == 1);
  CHECK(bench.has_copy(1) == 0);  // the tail has its copy, and only tails are offloaded
  bench.evict();
  CHECK(bench.has_copy(1) == 1);
  CHECK(bench.find(1, 2).pin.pages == 0);
  bench.index.check_invariants();
}

TEST_CASE("prefix index: pages evicted without being copied count as evicted too") {
  Bench bench(4, 1);
  bench.cache(1, 1);  // page 0
  CHECK(bench.has_copy(1) == 1);
  bench.cache(2, 1);  // page 1
  bench.cache(1, 1);  // its copy, the only one that fits on the host, is newer now
  Pin pin;
  uint32_t first = 0;
  std::vector<PageId> source, target;
  CHECK(bench.index.start_offload(1, &pin, &first, &source, &target) ==
        PrefixIndex::Offload::kHostHoldsNewer);
  CHECK(bench.index.evict_uncopied_page() == PageId{1});
  CHECK(bench.index.pages_evicted() == 1);
  bench.evict();
  CHECK(bench.index.pages_evicted() == 2);
  bench.index.check_invariants();
}
