#include "engine/kv/page_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <set>
#include <vector>

#include "engine/base/prng.h"

using namespace kvtwin;

namespace {

// The contract of PagePool in its simplest form.
class PlainPool {
 public:
  PlainPool(uint32_t first, uint32_t pages, PageOrder order) : order_(order) {
    for (uint32_t i = 0; i < pages; ++i) free_.push_back({first + i, 0});
  }
  bool can_acquire() const { return !free_.empty(); }
  bool can_roll_back() const { return !undo_.empty(); }
  size_t pages_free() const { return free_.size(); }
  const std::set<uint32_t>& owned() const { return owned_; }
  uint64_t oldest_stamp() const { return order_ == PageOrder::kOldestFirst ? next().stamp : 0; }

  uint32_t acquire() {
    const Free page = next();
    free_.erase(std::find_if(free_.begin(), free_.end(), [&](const Free& f) { return f.page == page.page; }));
    owned_.insert(page.page);
    undo_.push_back(page);
    return page.page;
  }
  uint32_t roll_back() {
    const Free page = undo_.back();
    undo_.pop_back();
    owned_.erase(page.page);
    free_.push_front(page);
    return page.page;
  }
  void release(uint32_t page, uint64_t stamp) {
    owned_.erase(page);
    free_.push_back({page, stamp});
    undo_.clear();
  }

 private:
  struct Free {
    uint32_t page;
    uint64_t stamp;
  };
  Free next() const {
    if (order_ == PageOrder::kOldestFirst) return free_.front();
    return *std::min_element(free_.begin(), free_.end(),
                             [](const Free& a, const Free& b) { return a.page < b.page; });
  }

  const PageOrder order_;
  std::deque<Free> free_;
  std::set<uint32_t> owned_;
  std::vector<Free> undo_;
};

void expect_equal(const PagePool& pool, const PlainPool& plain, uint32_t pages) {
  REQUIRE(pool.pages_free() == plain.pages_free());
  REQUIRE(pool.pages_owned() == plain.owned().size());
  REQUIRE(pool.pages_total() == pages);
  if (plain.can_acquire()) REQUIRE(pool.oldest_stamp() == plain.oldest_stamp());
}

void random_run(uint64_t seed, PageOrder order) {
  Prng prng(seed);
  static constexpr uint32_t kSizes[] = {0, 1, 2, 3, 63, 64, 65, 128, 4'095, 4'096, 4'097};
  const uint32_t pages = kSizes[prng.range(0, std::size(kSizes) - 1)];
  const auto first = static_cast<uint32_t>(prng.range(0, 100));
  PagePool pool(PageId{first}, pages, order);
  PlainPool plain(first, pages, order);
  const uint64_t acquire_weight = prng.range(1, 9);  // some runs fill up, others stay empty
  uint64_t stamp = 0;
  for (int op = 0; op < 200; ++op) {
    stamp += prng.range(0, 2);
    if (plain.can_roll_back() && prng.chance(1, 8)) {
      pool.roll_back(PageId{plain.roll_back()});
    } else if (plain.can_acquire() && (plain.owned().empty() || prng.chance(acquire_weight, 10))) {
      REQUIRE(raw(pool.acquire()) == plain.acquire());
    } else if (!plain.owned().empty()) {
      const auto victim = std::next(plain.owned().begin(),
                                    static_cast<std::ptrdiff_t>(prng.range(0, plain.owned().size() - 1)));
      const uint32_t page = *victim;
      REQUIRE(pool.owned(PageId{page}));
      pool.release(PageId{page}, stamp);
      plain.release(page, stamp);
      REQUIRE(!pool.owned(PageId{page}));
    }
    expect_equal(pool, plain, pages);
    pool.check_invariants();
  }
}

// Runs `choices` as operations on a fresh pool: 0 acquire, 1 unacquire, 2+i release page i. Stops at the
// first that is not allowed.
void run_choices(const std::vector<uint32_t>& choices, uint32_t pages, PageOrder order) {
  PagePool pool(PageId{5}, pages, order);
  PlainPool plain(5, pages, order);
  uint64_t stamp = 0;
  for (const uint32_t choice : choices) {
    if (choice == 0) {
      if (!plain.can_acquire()) return;
      REQUIRE(raw(pool.acquire()) == plain.acquire());
    } else if (choice == 1) {
      if (!plain.can_roll_back()) return;
      pool.roll_back(PageId{plain.roll_back()});
    } else {
      const uint32_t page = 5 + choice - 2;
      if (!plain.owned().contains(page)) return;
      pool.release(PageId{page}, ++stamp);
      plain.release(page, stamp);
    }
    expect_equal(pool, plain, pages);
    pool.check_invariants();
  }
}

}  // namespace

TEST_CASE("page pool: agrees with a plain list of free pages, in both orders") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    random_run(seed, PageOrder::kLowestFirst);
    random_run(seed, PageOrder::kOldestFirst);
  }
}

TEST_CASE("page pool: every sequence of six operations on at most four pages agrees with a plain list") {
  constexpr int kLength = 6;
  for (const PageOrder order : {PageOrder::kLowestFirst, PageOrder::kOldestFirst}) {
    for (uint32_t pages = 0; pages <= 4; ++pages) {
      const uint32_t kinds = 2 + pages;
      uint32_t sequences = 1;
      for (int i = 0; i < kLength; ++i) sequences *= kinds;
      std::vector<uint32_t> choices(kLength);
      for (uint32_t number = 0; number < sequences; ++number) {
        uint32_t rest = number;
        for (uint32_t& choice : choices) {
          choice = rest % kinds;
          rest /= kinds;
        }
        run_choices(choices, pages, order);
      }
    }
  }
}

TEST_CASE("page pool: a pool of four levels finds its lowest page") {
  constexpr uint32_t kPages = 300'000;
  PagePool pool(PageId{0}, kPages, PageOrder::kLowestFirst);
  for (uint32_t i = 0; i < kPages; ++i) REQUIRE(raw(pool.acquire()) == i);
  pool.release(PageId{299'999}, 0);
  pool.release(PageId{4'096}, 0);
  CHECK(raw(pool.acquire()) == 4'096);
  CHECK(raw(pool.acquire()) == 299'999);
  CHECK(pool.pages_free() == 0);
}
