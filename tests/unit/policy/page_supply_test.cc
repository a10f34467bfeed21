#include "engine/kv/store/page_supply.h"

#include <doctest/doctest.h>

#include <deque>
#include <vector>

#include "engine/methods/registry.h"

using namespace kvtwin;

namespace {

// Cached pages in the order in which they are evicted: each element goes as a whole.
class TestCache final : public PageCache {
 public:
  struct Cached {
    uint64_t rank = 0;
    std::vector<uint32_t> pages;
  };
  explicit TestCache(std::vector<Cached> cached) : cached_(cached.begin(), cached.end()) {}

  uint32_t pages_evictable() const override {
    size_t pages = 0;
    for (const Cached& one : cached_) pages += one.pages.size();
    return static_cast<uint32_t>(pages);
  }
  uint64_t next_eviction_rank() const override { return cached_.front().rank; }
  void evict_pages(uint32_t count, std::vector<PageId>* pages) override {
    for (const size_t end = pages->size() + count; pages->size() < end; cached_.pop_front()) {
      for (const uint32_t page : cached_.front().pages) pages->push_back(PageId{page});
    }
  }
  uint32_t pages_spare() const override { return 0; }
  bool covers(std::span<const uint64_t>) const override { return true; }
  void evict_uncopied(std::vector<PageId>* pages) override { evict_pages(1, pages); }

 private:
  std::deque<Cached> cached_;
};

struct Row {
  const char* what;
  PageOrder order;
  std::vector<uint32_t> free;  // page i was released at stamp 10 * (i + 1)
  std::vector<TestCache::Cached> cached;
  std::vector<uint32_t> taken;
};

}  // namespace

TEST_CASE("page supply: what is taken from free pages and from a cache whose elements have several pages") {
  const Row rows[] = {
      {"free pages by number, then the cache", PageOrder::kLowestFirst, {2, 5}, {{1, {4, 3}}}, {2, 5, 3, 4}},
      {"an element that is older goes first, in its order",
       PageOrder::kOldestFirst,
       {2, 5},
       {{5, {4, 3}}},
       {4, 3, 2, 5}},
      {"one between two free pages", PageOrder::kOldestFirst, {2, 5}, {{55, {4, 3}}}, {2, 4, 3, 5}},
      {"equally old: the free page", PageOrder::kOldestFirst, {2, 5}, {{30, {4, 3}}}, {2, 4, 3, 5}},
      {"newer than all: last", PageOrder::kOldestFirst, {2, 5}, {{90, {4, 3}}}, {2, 5, 4, 3}},
      {"elements in their own order",
       PageOrder::kOldestFirst,
       {2},
       {{5, {4}}, {20, {1, 3}}, {40, {0}}},
       {4, 1, 3, 2, 0}},
      {"nothing is free", PageOrder::kOldestFirst, {}, {{5, {4, 3}}, {9, {1}}}, {4, 3, 1}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    PagePool pool(PageId{0}, 6, row.order);
    for (uint32_t i = 0; i < 6; ++i) pool.acquire();
    for (const uint32_t page : row.free) pool.release(PageId{page}, 10 * (page + 1));
    PagePool unused(PageId{100}, 1, PageOrder::kLowestFirst);
    TestCache cache(row.cached);
    PrefixIndex stamps(1, &unused, nullptr, make_prefix_eviction(CoreConfig{}, 1));
    bool evicted = false;
    PageSupply supply(&pool, &cache, &stamps, row.order, 1, &evicted);
    const auto all = static_cast<uint32_t>(row.taken.size());
    CHECK(supply.available({}) == all);
    std::vector<uint32_t> taken;
    for (uint32_t left = all; left > 0; --left) {
      const bool free_next = supply.free_page_is_next();
      const uint32_t evictable = supply.pages_evictable();
      taken.push_back(raw(supply.take(1)));
      CHECK(free_next == (supply.pages_evictable() == evictable));
    }
    CHECK(evicted);
    CHECK(taken == row.taken);
    pool.check_invariants();
  }
}

TEST_CASE(
    "page supply: a page that was taken ahead of an evicted element is rolled back in front of the rest") {
  PagePool pool(PageId{0}, 4, PageOrder::kOldestFirst);
  for (uint32_t i = 0; i < 4; ++i) pool.acquire();
  pool.release(PageId{1}, 50);
  PagePool unused(PageId{100}, 1, PageOrder::kLowestFirst);
  TestCache cache({{5, {3, 2, 0}}});
  PrefixIndex stamps(1, &unused, nullptr, make_prefix_eviction(CoreConfig{}, 1));
  bool evicted = false;
  PageSupply supply(&pool, &cache, &stamps, PageOrder::kOldestFirst, 1, &evicted);
  CHECK(raw(supply.take(1)) == 3);
  CHECK(supply.free_page_is_next());  // the rest of the element
  const PageId ahead = supply.take_free();
  CHECK(raw(ahead) == 2);
  supply.roll_back(ahead);
  for (const uint32_t page : {2u, 0u, 1u}) CHECK(raw(supply.take(1)) == page);
}
