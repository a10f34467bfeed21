#include "engine/kv/group_tables.h"

#include <doctest/doctest.h>

#include <vector>

#include "engine/base/prng.h"

using namespace kvtwin;

namespace {

// The same tables, stored entry by entry.
struct Naive {
  std::vector<uint32_t> kv_entries;
  std::vector<std::vector<PageId>> pages;
};

// The request is swapped out, and returns to other pages.
void swap(GroupTables* tables, Naive* naive, uint32_t tokens, uint32_t page_tokens, uint32_t* page_next) {
  std::vector<PageId> pages, expected;
  for (const std::vector<PageId>& of_group : naive->pages)
    expected.insert(expected.end(), of_group.begin(), of_group.end());
  CHECK(tables->pages_filled(tokens) == expected.size());
  std::vector<PageId> lent;
  tables->detach(&lent, &pages);
  CHECK(lent.empty());
  CHECK(pages == expected);
  CHECK(tables->pages() == 0);
  uint64_t lacking = 0;
  for (uint32_t g = 0; g < tables->groups(); ++g) {
    CHECK(tables->kv_entries(g, tokens) == naive->kv_entries[g]);
    lacking += div_ceil(naive->kv_entries[g] + 3, page_tokens);
  }
  CHECK(tables->pages_lacking(tokens + 3) == lacking);
  pages.clear();
  for (std::vector<PageId>& of_group : naive->pages) {
    for (PageId& page : of_group) pages.push_back(page = PageId{(*page_next)++});
  }
  tables->attach(tokens, pages);
  CHECK(tables->pages_lacking(tokens + 3) == lacking - pages.size());
}

}  // namespace

TEST_CASE("T-2 group tables: equal to plain lists, over 200 seeds of growing, compressing and swapping") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    GroupShape shape;
    shape.groups = static_cast<uint32_t>(prng.range(1, 9));
    shape.page_tokens = static_cast<uint32_t>(prng.range(1, 7));
    GroupTables tables;
    tables.open(&shape);
    Naive naive{std::vector<uint32_t>(shape.groups, 0), std::vector<std::vector<PageId>>(shape.groups)};
    uint32_t tokens = 0, page_next = 0;
    std::vector<uint32_t> wanted, kv_entries;
    std::vector<PageId> spare;
    for (int operation = 0; operation < 200; ++operation) {
      if (prng.chance(4, 5)) {  // mostly decode steps
        const auto more = static_cast<uint32_t>(prng.chance(3, 4) ? 1 : prng.range(1, 20));
        wanted.clear();
        tables.wanted(tokens, tokens + more, &wanted);
        std::vector<uint32_t> expected;
        for (uint32_t g = 0; g < shape.groups; ++g) {
          naive.kv_entries[g] += more;
          const size_t needs = div_ceil(naive.kv_entries[g], shape.page_tokens);
          for (size_t page = naive.pages[g].size(); page < needs; ++page) expected.push_back(g);
        }
        CHECK(wanted == expected);
        for (const uint32_t g : wanted) {
          tables.give(g, PageId{page_next});
          naive.pages[g].push_back(PageId{page_next++});
        }
        tables.settle();
        tokens += more;
      } else {
        kv_entries.clear();
        for (uint32_t g = 0; g < shape.groups; ++g) {
          naive.kv_entries[g] -= static_cast<uint32_t>(prng.range(0, naive.kv_entries[g]));
          kv_entries.push_back(naive.kv_entries[g]);
        }
        tables.keep(tokens, kv_entries);
        spare.clear();
        tables.trim(tokens, &spare);
        std::vector<PageId> expected;
        for (uint32_t g = shape.groups; g-- > 0;) {
          while (naive.pages[g].size() > div_ceil(naive.kv_entries[g], shape.page_tokens)) {
            expected.push_back(naive.pages[g].back());
            naive.pages[g].pop_back();
          }
        }
        CHECK(spare == expected);
        if (prng.chance(1, 2)) swap(&tables, &naive, tokens, shape.page_tokens, &page_next);
      }
      tables.check(tokens);
      for (uint32_t g = 0; g < shape.groups; ++g) {
        CHECK(tables.kv_entries(g, tokens) == naive.kv_entries[g]);
        REQUIRE(tables.pages(g) == naive.pages[g].size());
        for (uint32_t i = 0; i < tables.pages(g); ++i) CHECK(tables.page(g, i) == naive.pages[g][i]);
      }
    }
    spare.clear();
    tables.clear(&spare);
    CHECK(tables.pages() == 0);
  }
}

TEST_CASE("group tables: rings stop growing, other groups do not") {
  GroupShape shape;
  shape.groups = 3;
  shape.page_tokens = 4;
  shape.ring_pages = 2;
  shape.ring = {true, false, true};
  shape.rings = 2;
  GroupTables tables;
  tables.open(&shape);
  std::vector<uint32_t> wanted;
  for (uint32_t tokens = 0; tokens < 40; ++tokens) {
    wanted.clear();
    tables.wanted(tokens, tokens + 1, &wanted);
    for (const uint32_t g : wanted) tables.give(g, PageId{tokens * 4 + g});
    tables.check(tokens + 1);
  }
  CHECK(tables.pages(0) == 2);
  CHECK(tables.pages(1) == 10);
  CHECK(tables.kv_entries(0, 40) == 8);
  CHECK(tables.kv_entries(40) == 8 + 40 + 8);
}

TEST_CASE("group tables: even depth tops up short groups when the longest crosses a page") {
  GroupShape shape;
  shape.groups = 2;
  shape.page_tokens = 4;
  shape.even = true;
  GroupTables tables;
  tables.open(&shape);
  std::vector<uint32_t> wanted;
  tables.wanted(0, 16, &wanted);
  for (const uint32_t g : wanted) tables.give(g, PageId{g});
  tables.settle();
  std::vector<PageId> spare;
  tables.keep(16, std::vector<uint32_t>{12, 3});
  tables.trim(16, &spare);
  CHECK(spare.size() == 4);  // 4 + 4 pages, of which 3 + 1 are needed
  wanted.clear();
  tables.wanted(16, 17, &wanted);
  // The longest then holds 13: four pages for both.
  CHECK(wanted == std::vector<uint32_t>{0, 1, 1, 1});
}
