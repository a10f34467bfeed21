#include "engine/kv/group_tables.h"

#include "engine/base/check.h"

namespace kvtwin {

void GroupTables::open(const GroupShape* shape) {
  KVT_CHECK(pages_all_ == 0);
  shape_ = shape;
  settled_ = true;
  ordered_ = false;
  dropped_least_ = 0;
  dropped_all_ = 0;
  dropped_.assign(shape->groups, 0);
  pages_.assign(shape->groups, 0);
  borrows_ = false;
  shared_all_ = 0;
  stride_ = static_cast<uint32_t>(table_.size() / shape->groups);  // reuse the allocated capacity
}

uint32_t GroupTables::needs(uint32_t group, uint32_t tokens) const {
  const uint32_t kv_entries_of = shape_->even ? longest(tokens) : kv_entries(group, tokens);
  return div_ceil(kv_entries_of, shape_->page_tokens);
}

uint64_t GroupTables::pages_until(uint32_t tokens) const {
  uint64_t pages = 0;
  for (uint32_t g = 0; g < groups(); ++g) pages += needs(g, tokens) - shared(g);
  return pages;
}

uint64_t GroupTables::pages_lacking(uint32_t tokens) const {
  uint64_t pages = 0;
  for (uint32_t g = 0; g < groups(); ++g) {
    const uint32_t need = needs(g, tokens);
    pages += need - std::min(need, retained_pages(g));
  }
  return pages;
}

uint64_t GroupTables::pages_lacking(std::span<const uint32_t> entries) const {
  uint64_t pages = 0;
  for (uint32_t g = 0; g < groups(); ++g) {
    const uint32_t need = div_ceil(entries[g], shape_->page_tokens);
    pages += need - std::min(need, retained_pages(g));
  }
  return pages;
}

uint64_t GroupTables::pages_filled(uint32_t tokens) const {
  uint64_t pages = 0;
  for (uint32_t g = 0; g < groups(); ++g) pages += filled(g, tokens);
  return pages;
}

void GroupTables::wanted(uint32_t from, uint32_t tokens, std::vector<uint32_t>* groups_out) {
  if (settled_ && tokens == from + 1) {
    for (const uint32_t g : crossing(from)) {
      if (!ring_full(g)) groups_out->push_back(g);
    }
    return;
  }
  for (uint32_t g = 0; g < groups(); ++g) {
    for (uint32_t page = retained_pages(g), need = needs(g, tokens); page < need; ++page)
      groups_out->push_back(g);
  }
}

void GroupTables::wanted(std::span<const uint32_t> after, std::vector<uint32_t>* groups_out) const {
  for (uint32_t g = 0; g < groups(); ++g) {
    const uint32_t need = div_ceil(after[g], shape_->page_tokens);
    for (uint32_t page = retained_pages(g); page < need; ++page) groups_out->push_back(g);
  }
}

// A counting sort; runs after lengths have changed.
void GroupTables::order() {
  ordered_ = true;
  const uint32_t page = shape_->page_tokens;
  starts_.assign(page + 1, 0);
  order_.resize(dropped_.size());
  const auto residue = [&](uint32_t g) { return (shape_->even ? dropped_least_ : dropped_[g]) % page; };
  for (uint32_t g = 0; g < groups(); ++g) ++starts_[residue(g) + 1];
  for (uint32_t r = 0; r < page; ++r) starts_[r + 1] += starts_[r];
  for (uint32_t g = groups(); g-- > 0;) order_[--starts_[residue(g) + 1]] = g;
  // starts_[r + 1] has moved from the end of residue r to its start.
  for (uint32_t r = 0; r < page; ++r) starts_[r] = starts_[r + 1];
  starts_[page] = groups();
}

std::span<const uint32_t> GroupTables::crossing(uint32_t token) {
  if (!ordered_) order();
  const uint32_t residue = token % shape_->page_tokens;
  return {order_.data() + starts_[residue], starts_[residue + 1] - starts_[residue]};
}

void GroupTables::widen() {
  const uint32_t wider = std::max(2 * stride_, 4u);
  std::vector<PageId> table(size_t{wider} * groups());
  for (uint32_t g = 0; g < groups(); ++g) {
    std::copy_n(table_.data() + size_t{g} * stride_, pages_[g], table.data() + size_t{g} * wider);
  }
  table_ = std::move(table);
  stride_ = wider;
}

void GroupTables::give(uint32_t group, PageId page) {
  if (pages_[group] == stride_) widen();
  table_[size_t{group} * stride_ + pages_[group]++] = page;
  ++pages_all_;
}

PageId GroupTables::take_last(uint32_t group) {
  KVT_CHECK(pages_[group] > 0);
  --pages_all_;
  return table_[size_t{group} * stride_ + --pages_[group]];
}

void GroupTables::keep(uint32_t tokens, std::span<const uint32_t> entries_left) {
  KVT_CHECK(shape_->rings == 0);
  KVT_CHECK(entries_left.size() == groups());
  dropped_all_ = 0;
  dropped_least_ = UINT32_MAX;
  for (uint32_t g = 0; g < groups(); ++g) {
    KVT_CHECK(entries_left[g] <= tokens - dropped_[g]);
    dropped_[g] = tokens - entries_left[g];
    dropped_all_ += dropped_[g];
    dropped_least_ = std::min(dropped_least_, dropped_[g]);
  }
  ordered_ = false;
}

void GroupTables::trim(uint32_t tokens, std::vector<PageId>* pages) {
  for (uint32_t g = groups(); g-- > 0;) {
    const uint32_t own = filled(g, tokens);  // pages up to an even depth are added when pages are next given
    KVT_CHECK(own >= shared(g));
    while (pages_[g] > own) pages->push_back(take_last(g));
  }
  settled_ = !shape_->even;
}

void GroupTables::clear(std::vector<PageId>* pages) {
  for (size_t i = pages_.size(); i-- > 0;) {
    const auto g = static_cast<uint32_t>(i);
    const uint32_t others = borrows_ ? pages_[g] : shared(g);
    while (pages_[g] > others) pages->push_back(take_last(g));
    pages_[g] = 0;
  }
  pages_all_ = shared_all_ = 0;
  borrows_ = false;
}

void GroupTables::detach(std::vector<PageId>* lent_pages, std::vector<PageId>* own) {
  std::vector<uint32_t> lent_here(groups());
  for (uint32_t g = 0; g < groups(); ++g) {
    lent_here[g] = borrows_ ? pages_[g] : shared(g);
    for (uint32_t i = 0; i < pages_[g]; ++i) (i < lent_here[g] ? lent_pages : own)->push_back(page(g, i));
  }
  shared_all_ = lent();
  shared_.swap(lent_here);
  borrows_ = false;
  pages_.assign(groups(), 0);
  pages_all_ = 0;
}

void GroupTables::attach(uint32_t tokens, std::span<const PageId> pages) {
  KVT_CHECK(pages_all_ == 0 && pages.size() == pages_filled(tokens));
  size_t lent_next = 0, own_next = shared_all_;
  for (uint32_t g = 0; g < groups(); ++g) {
    for (uint32_t i = 0, n = filled(g, tokens); i < n; ++i)
      give(g, pages[i < shared(g) ? lent_next++ : own_next++]);
  }
  shared_all_ = 0;
}

void GroupTables::stand_behind(uint32_t tokens, std::span<const uint32_t> entries_there,
                               std::span<const uint32_t> shared_there) {
  KVT_CHECK(pages_all_ == 0 && shape_->rings == 0);
  keep(tokens, entries_there);
  shared_.assign(shared_there.begin(), shared_there.end());
  for (const uint32_t pages : shared_) shared_all_ += pages;
  borrows_ = true;
  settled_ = false;
}

void GroupTables::borrow(std::span<const uint32_t> entries_there, std::span<const PageId> pages) {
  KVT_CHECK(pages_all_ == 0 && borrows_);
  size_t next = 0;
  for (uint32_t g = 0; g < groups(); ++g) {
    for (uint32_t n = div_ceil(entries_there[g], shape_->page_tokens); n > 0; --n) give(g, pages[next++]);
    KVT_CHECK(shared(g) <= pages_[g]);
  }
  KVT_CHECK(next == pages.size());
}

void GroupTables::lend(std::span<const uint32_t> shared_now) {
  shared_.assign(shared_now.begin(), shared_now.end());
  shared_all_ = 0;
  for (uint32_t g = 0; g < groups(); ++g) {
    KVT_CHECK(shared_[g] <= pages_[g]);
    shared_all_ += shared_[g];
  }
  borrows_ = true;
  settled_ = false;
}

void GroupTables::drop_borrowed() {
  for (uint32_t g = 0; g < groups(); ++g) pages_[g] = shared(g);
  pages_all_ = shared_all_;
  borrows_ = false;
}

void GroupTables::check(uint32_t tokens) const {
  uint64_t sum = 0, all = 0;
  for (uint32_t g = 0; g < groups(); ++g) {
    KVT_CHECK(dropped_[g] <= tokens);
    KVT_CHECK(uint64_t{pages_[g]} * shape_->page_tokens >= kv_entries(g, tokens));  // T-2
    KVT_CHECK(!is_ring(g) || pages_[g] <= shape_->ring_pages);
    KVT_CHECK(shared(g) <= pages_[g]);
    sum += pages_[g];
    all += kv_entries(g, tokens);
  }
  KVT_CHECK(sum == pages_all_);
  KVT_CHECK(all == kv_entries(tokens));
}

}  // namespace kvtwin
