#include "engine/kv/store/mixed_precision_pool.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

using Wide = unsigned __int128;

uint32_t clamp_pages(Wide pages) { return static_cast<uint32_t>(std::min<Wide>(pages, UINT32_MAX / 2)); }

void push_bits(std::vector<BitRun>* bits, uint32_t count, bool four) {
  if (count == 0) return;
  if (!bits->empty() && bits->back().count > 0 && bits->back().four == four) {
    bits->back().count += count;
  } else {
    bits->push_back({count, four});
  }
}

}  // namespace

MixedPrecisionPoolSize split_mixed_precision_pool(uint64_t bytes, uint64_t bits_above_two,
                                                  uint64_t page_bytes_2, uint64_t page_bytes_4) {
  constexpr uint64_t kTwo = uint64_t{2} << 32;
  KVT_CHECK(bits_above_two <= kTwo && page_bytes_2 > 0 && page_bytes_4 > 0);
  const Wide parts_2 = kTwo - bits_above_two, parts_4 = bits_above_two;
  const Wide bytes_of_all_parts = parts_2 * page_bytes_2 + parts_4 * page_bytes_4;
  return {clamp_pages(parts_2 * bytes / bytes_of_all_parts),
          clamp_pages(parts_4 * bytes / bytes_of_all_parts)};
}

void bits_of(std::span<const RoleRun> roles, uint32_t last_turn, uint32_t prompt_tokens,
             const PrecisionSpec& spec, std::vector<BitRun>* bits) {
  bits->clear();
  uint32_t left = prompt_tokens;
  for (const RoleRun& run : roles) {
    const uint32_t count = std::min(run.count, left);
    TokenRole role = run.role;
    role.turn = std::min(role.turn, last_turn);
    push_bits(bits, count, gets_four_bits(spec, role, last_turn));
    left -= count;
  }
  push_bits(bits, left, true);
}

MixedPrecisionPool::MixedPrecisionPool(MixedPrecisionPoolSize size, uint32_t page_tokens, bool ages,
                                       const MixedPrecisionHost& host)
    : size_(size),
      page_tokens_(page_tokens),
      ages_(ages),
      pool_2_(PageId{0}, size.pages_2, PageOrder::kLowestFirst),
      pool_4_(PageId{size.pages_2}, size.pages_4, PageOrder::kLowestFirst),
      pages_(size_t{size.pages_2} + size.pages_4),
      seen_(pages_.size(), 0),
      seen_entries_(pages_.size(), 0),
      host_(host),
      copies_(host.count == 0 ? nullptr
                              : std::make_unique<PagePool>(host.first, host.count, PageOrder::kLowestFirst)),
      copied_(host.count),
      host_pages_(host.count) {
  KVT_CHECK(page_tokens > 0);
}

// --- pages of logical pages

void MixedPrecisionPool::link(PageId logical_page, PageId page, uint32_t kv_entries) {
  LogicalPage& f = logical_pages_[raw(logical_page)];
  pages_[raw(page)].version = ++versions_;
  for (uint32_t i = 0; i < f.count; ++i) {
    if (f.links[i].page != page) continue;
    f.links[i].kv_entries += kv_entries;
    return;
  }
  KVT_CHECK(f.count < kLinks);
  f.links[f.count++] = {page, kv_entries};
  change(page, [&](Page* p) {
    ++p->logical_pages;
    p->held += f.held ? 1 : 0;
    p->copied += f.copy == kNoPage ? 0 : 1;
  });
}

void MixedPrecisionPool::drop_link(PageId logical_page, uint32_t index) {
  LogicalPage& f = logical_pages_[raw(logical_page)];
  change(f.links[index].page, [&](Page* p) {
    --p->logical_pages;
    p->held -= f.held ? 1 : 0;
    p->copied -= f.copy == kNoPage ? 0 : 1;
  });
  f.links[index] = f.links[--f.count];
}

void MixedPrecisionPool::unlink(PageId logical_page, PageId page, uint32_t kv_entries) {
  LogicalPage& f = logical_pages_[raw(logical_page)];
  uint32_t i = 0;
  while (f.links[i].page != page) {
    ++i;
    KVT_CHECK(i < f.count);
  }
  KVT_CHECK(f.links[i].kv_entries >= kv_entries);
  f.links[i].kv_entries -= kv_entries;
  if (f.links[i].kv_entries == 0) drop_link(logical_page, i);
}

// KV entries [offset, offset + count) of the logical page are now in `page`.
void MixedPrecisionPool::place(PageId logical_page, uint32_t offset, uint32_t count, PageId page) {
  if (!ages_) return;
  std::vector<PageId>& at = logical_pages_[raw(logical_page)].at;
  at.resize(page_tokens_, kNoPage);
  std::fill_n(at.begin() + offset, count, page);
}

void MixedPrecisionPool::hold(std::span<const PageId> logical_pages, bool held) {
  for (const PageId logical_page : logical_pages) {
    if (raw(logical_page) >= logical_pages_.size()) logical_pages_.resize(raw(logical_page) + size_t{1});
    LogicalPage& f = logical_pages_[raw(logical_page)];
    KVT_CHECK(f.held != held);
    f.held = held;
    for (uint32_t i = 0; i < f.count; ++i)
      change(f.links[i].page, [&](Page* p) { p->held += held ? 1 : ~0u; });  // +1 or -1, modulo 2^32
  }
}

void MixedPrecisionPool::freed(PageId logical_page) {
  LogicalPage& f = logical_pages_[raw(logical_page)];
  while (f.count > 0) {
    const PageId page = f.links[f.count - 1].page;
    drop_link(logical_page, f.count - 1);
    if (pages_[raw(page)].logical_pages == 0) (is_int4(page) ? pool_4_ : pool_2_).release(page, 0);
  }
  f.held = false;
  f.copy = kNoPage;
  f.at.clear();
}

void MixedPrecisionPool::age(const Request& request, std::span<const PageId> prefix,
                             std::span<const uint8_t> alone, uint32_t pages_2,
                             std::vector<Requantisation>* moves) {
  KVT_CHECK(ages_ && pages_2 <= pool_2_.pages_free());
  const auto end = static_cast<uint32_t>(prefix.size()) * page_tokens_;
  due_.clear();
  uint32_t first = 0;
  for (const BitRun& bits : request.bits) {
    for (uint32_t p = first; !bits.four && p < std::min(end, first + bits.count); ++p) {
      const uint32_t index = p / page_tokens_;
      if (alone[index] != 0 && ages_now(logical_pages_[raw(prefix[index])], p % page_tokens_))
        due_.push_back(p);
    }
    first += bits.count;
    if (first >= end) break;
  }
  const auto groups = std::min(pages_2, static_cast<uint32_t>(due_.size()) / page_tokens_);
  for (uint32_t i = 0; i < groups * page_tokens_; ++i) {
    const PageId target = i % page_tokens_ == 0 ? pool_2_.acquire() : moves->back().target;
    const PageId logical_page = prefix[due_[i] / page_tokens_];
    const uint32_t offset = due_[i] % page_tokens_;
    const PageId source = logical_pages_[raw(logical_page)].at[offset];
    unlink(logical_page, source, 1);
    link(logical_page, target, 1);
    place(logical_page, offset, 1, target);
    if (pages_[raw(source)].logical_pages == 0) pool_4_.release(source, 0);
    const bool follows = i % page_tokens_ != 0 && moves->back().source == source &&
                         moves->back().position + moves->back().count == due_[i];
    if (follows) {
      ++moves->back().count;
    } else {
      moves->push_back({source, target, due_[i], 1});
    }
  }
}

void MixedPrecisionPool::list_pages(std::span<const PageId> logical_pages, std::vector<PageId>* pages) const {
  for (const PageId logical_page : logical_pages) {
    const LogicalPage& f = logical_pages_[raw(logical_page)];
    for (uint32_t i = 0; i < f.count; ++i) pages->push_back(f.links[i].page);
    pages->push_back(kNoPage);
  }
}

// --- swapping

void MixedPrecisionPool::free_unused(Request* request) {
  if (request->pages_4.size() <= div_ceil(request->entries_4, page_tokens_)) return;
  KVT_CHECK(pages_[raw(request->pages_4.back())].logical_pages == 0);
  pool_4_.release(request->pages_4.back(), 0);
  request->pages_4.pop_back();
}

void MixedPrecisionPool::swap_out(std::span<const PageId> logical_pages, Request* request,
                                  std::vector<PageId>* pages, SwappedOut* out) {
  KVT_CHECK(request->waiting.empty());
  out->logical_pages.clear();
  out->four.clear();
  ++begun_;
  const auto index_of = [&](PageId page) {
    if (std::exchange(seen_[raw(page)], begun_) != begun_) {
      seen_entries_[raw(page)] = static_cast<uint32_t>(out->four.size());
      out->four.push_back(is_int4(page));
      pages->push_back(page);
    }
    return PageId{seen_entries_[raw(page)]};
  };
  for (const PageId logical_page : logical_pages) {
    LogicalPage& f = out->logical_pages.emplace_back(logical_pages_[raw(logical_page)]);
    f.copy = kNoPage;
    for (uint32_t i = 0; i < f.count; ++i) f.links[i].page = index_of(f.links[i].page);
    for (PageId& page : f.at) page = page == kNoPage ? kNoPage : index_of(page);
  }
  const size_t copies = out->four.size();
  for (PageId& page : request->pages_4) page = index_of(page);
  KVT_CHECK(copies == out->four.size() && copies == request->pages());
}

void MixedPrecisionPool::swap_in(const SwappedOut& from, std::span<const PageId> logical_pages,
                                 Request* request, std::vector<PageId>* pages) {
  const size_t first = pages->size();
  for (const bool four : from.four) pages->push_back((four ? pool_4_ : pool_2_).acquire());
  const auto page_at = [&](PageId index) { return (*pages)[first + raw(index)]; };
  KVT_CHECK(logical_pages.size() == from.logical_pages.size());
  for (size_t n = 0; n < logical_pages.size(); ++n) {
    const LogicalPage& was = from.logical_pages[n];
    for (uint32_t i = 0; i < was.count; ++i)
      link(logical_pages[n], page_at(was.links[i].page), was.links[i].kv_entries);
    std::vector<PageId>& at = logical_pages_[raw(logical_pages[n])].at;
    at = was.at;
    for (PageId& page : at) page = page == kNoPage ? kNoPage : page_at(page);
  }
  for (PageId& page : request->pages_4) page = page_at(page);
}

// --- a request's KV entries

PageId MixedPrecisionPool::logical_page_of(uint32_t position, const LogicalPages& logical_pages) const {
  return logical_pages.ids[position / page_tokens_ - logical_pages.first];
}

void MixedPrecisionPool::begin(uint32_t tokens, std::span<const PageId> reused, Request* request,
                               std::vector<PageId>* pages) {
  reset(request);
  uint32_t left = request->at = tokens;
  while (request->run < request->bits.size() && left >= request->bits[request->run].count)
    left -= request->bits[request->run++].count;
  request->used = request->run < request->bits.size() ? left : 0;
  ++begun_;
  for (const PageId logical_page : reused) {
    const LogicalPage& f = logical_pages_[raw(logical_page)];
    for (uint32_t i = 0; i < f.count; ++i) {
      const Link& has = f.links[i];
      pages->push_back(has.page);
      if (!is_int4(has.page)) request->reused_entries_2 += has.kv_entries;
      const bool is_new = std::exchange(seen_[raw(has.page)], begun_) != begun_;
      uint32_t& kv_entries = seen_entries_[raw(has.page)];
      kv_entries = (is_new ? 0 : kv_entries) + has.kv_entries;
      request->reused_pages += is_new ? 1 : 0;
      if (!is_int4(has.page)) continue;
      request->reused_in_part += is_new ? 1 : 0;
      request->reused_in_part -= kv_entries == page_tokens_ ? 1 : 0;
    }
    pages->push_back(kNoPage);
  }
}

void MixedPrecisionPool::reset(Request* request) {
  request->waiting.clear();
  request->pages_4.clear();
  request->at = request->used = request->entries_4 = request->pages_2 = request->spilled = 0;
  request->reused_pages = request->reused_entries_2 = request->reused_in_part = 0;
  request->run = 0;
}

// Passes over the next `tokens` KV entries as runs of equal bits, and reports the end of the prompt if they
// reach it.
template <typename KvEntries, typename Flush>
void MixedPrecisionPool::walk(const Request& request, uint32_t tokens, KvEntries kv_entries, Flush flush) {
  const uint32_t end = request.at + tokens;
  uint32_t at = request.at, used = request.used;
  size_t run = request.run;
  while (at < end && at < request.prompt) {
    const BitRun bits =
        run < request.bits.size() ? request.bits[run] : BitRun{request.prompt - at + used, true};
    const uint32_t count = std::min(bits.count - used, std::min(end, request.prompt) - at);
    kv_entries(at, count, bits.four);
    at += count;
    used += count;
    if (used == bits.count) {
      ++run;
      used = 0;
    }
  }
  if (request.at < request.prompt && at == request.prompt) flush();
  if (at < end) kv_entries(at, end - at, true);
}

MixedPrecisionDemand MixedPrecisionPool::demand_of(const Request& request, uint32_t tokens, uint32_t pages_2,
                                                   uint32_t page_tokens) {
  uint64_t entries_2 = request.waiting.size(), entries_4 = 0;
  bool flushes = false;
  walk(
      request, tokens, [&](uint32_t, uint32_t count, bool four) { (four ? entries_4 : entries_2) += count; },
      [&] { flushes = true; });
  const uint64_t groups = entries_2 / page_tokens, taken = std::min<uint64_t>(groups, pages_2);
  entries_4 += request.entries_4 + (groups - taken) * page_tokens + (flushes ? entries_2 % page_tokens : 0);
  const uint64_t needed = div_ceil(entries_4, uint64_t{page_tokens});
  const uint64_t more = needed - std::min<uint64_t>(needed, request.pages_4.size());
  return {static_cast<uint32_t>(taken), static_cast<uint32_t>(std::min<uint64_t>(more, UINT32_MAX))};
}

void MixedPrecisionPool::put_4(uint32_t position, uint32_t count, const LogicalPages& logical_pages,
                               Request* request, std::vector<PageId>* taken) {
  while (count > 0) {
    const uint32_t page = request->entries_4 / page_tokens_;
    if (page == request->pages_4.size()) {
      request->pages_4.push_back(pool_4_.acquire());
      taken->push_back(request->pages_4.back());
    }
    const uint32_t room =
        std::min(page_tokens_ - request->entries_4 % page_tokens_, page_tokens_ - position % page_tokens_);
    const uint32_t some = std::min(count, room);
    link(logical_page_of(position, logical_pages), request->pages_4[page], some);
    place(logical_page_of(position, logical_pages), position % page_tokens_, some, request->pages_4[page]);
    request->entries_4 += some;
    position += some;
    count -= some;
  }
}

void MixedPrecisionPool::append(uint32_t tokens, uint32_t pages_2, const LogicalPages& logical_pages,
                                Request* request, std::vector<PageId>* taken, std::vector<BitRun>* bits) {
  const auto to_4 = [&] {
    for (const uint32_t position : request->waiting) put_4(position, 1, logical_pages, request, taken);
    request->waiting.clear();
  };
  walk(
      *request, tokens,
      [&](uint32_t position, uint32_t count, bool four) {
        push_bits(bits, count, four);
        if (four) return put_4(position, count, logical_pages, request, taken);
        for (uint32_t i = 0; i < count; ++i) {
          request->waiting.push_back(position + i);
          if (request->waiting.size() < page_tokens_) continue;
          if (pages_2 == 0) {
            request->spilled += page_tokens_;
            to_4();
            continue;
          }
          --pages_2;
          ++request->pages_2;
          taken->push_back(pool_2_.acquire());
          for (const uint32_t kv_entry : request->waiting) {
            link(logical_page_of(kv_entry, logical_pages), taken->back(), 1);
            place(logical_page_of(kv_entry, logical_pages), kv_entry % page_tokens_, 1, taken->back());
          }
          request->waiting.clear();
        }
      },
      [&] {
        to_4();
        bits->push_back({0, true});
      });
  uint32_t left = tokens;
  while (left > 0 && request->run < request->bits.size()) {
    const uint32_t some = std::min(left, request->bits[request->run].count - request->used);
    request->used += some;
    left -= some;
    if (request->used < request->bits[request->run].count) break;
    ++request->run;
    request->used = 0;
  }
  request->at += tokens;
}

PageId MixedPrecisionPool::take_ahead(Request* request) {
  request->pages_4.push_back(pool_4_.acquire());
  return request->pages_4.back();
}

void MixedPrecisionPool::truncate(uint32_t tokens, const LogicalPages& logical_pages, Request* request) {
  KVT_CHECK(tokens >= request->prompt || tokens == request->at);
  while (request->at > tokens) {
    const uint32_t last = request->at - 1;
    const PageId page = request->pages_4[(request->entries_4 - 1) / page_tokens_];
    const uint32_t in_page = (request->entries_4 - 1) % page_tokens_ + 1;
    const uint32_t some = std::min({request->at - tokens, in_page, last % page_tokens_ + 1});
    unlink(logical_page_of(last, logical_pages), page, some);
    place(logical_page_of(last, logical_pages), last % page_tokens_ + 1 - some, some, kNoPage);
    request->entries_4 -= some;
    request->at -= some;
  }
}

void MixedPrecisionPool::roll_back_page(const LogicalPages& logical_pages, Request* request) {
  const auto before = static_cast<uint32_t>(request->pages_4.size() - 1) * page_tokens_;
  if (request->entries_4 > before)
    truncate(request->at - (request->entries_4 - before), logical_pages, request);
  const PageId page = request->pages_4.back();
  KVT_CHECK(pages_[raw(page)].logical_pages == 0);
  pool_4_.roll_back(page);
  request->pages_4.pop_back();
}

void MixedPrecisionPool::check_invariants(uint64_t logical_pages_held) const {
  pool_2_.check_invariants();
  pool_4_.check_invariants();
  std::vector<uint64_t> kv_entries(pages_.size(), 0);
  std::vector<Page> found(pages_.size());
  for (const LogicalPage& logical_page : logical_pages_) {
    logical_pages_held -= logical_page.held ? 1 : 0;
    for (uint32_t i = 0; i < logical_page.count; ++i) {
      const uint32_t page = raw(logical_page.links[i].page);
      kv_entries[page] += logical_page.links[i].kv_entries;
      const auto here =
          std::count(logical_page.at.begin(), logical_page.at.end(), logical_page.links[i].page);
      KVT_CHECK(!ages_ || here == static_cast<ptrdiff_t>(logical_page.links[i].kv_entries));
      ++found[page].logical_pages;
      found[page].held += logical_page.held ? 1 : 0;
      found[page].copied += logical_page.copy == kNoPage ? 0 : 1;
    }
  }
  KVT_CHECK(logical_pages_held == 0);
  uint32_t evictable_found[2] = {0, 0}, copied_found = 0;
  for (uint32_t page = 0; page < pages_.size(); ++page) {
    KVT_CHECK(kv_entries[page] <= page_tokens_);
    KVT_CHECK(found[page].logical_pages == pages_[page].logical_pages);
    KVT_CHECK(found[page].held == pages_[page].held);
    KVT_CHECK(found[page].copied == pages_[page].copied);
    KVT_CHECK(pool(is_int4(PageId{page})).owned(PageId{page}) == (found[page].logical_pages > 0));
    evictable_found[is_int4(PageId{page})] += evictable(PageId{page}) ? 1 : 0;
    copied_found += evictable(PageId{page}) && found[page].copied == found[page].logical_pages ? 1 : 0;
  }
  KVT_CHECK(copied_found == evictable_copied_);
  check_copies();
  KVT_CHECK(evictable_found[0] == evictable_[0]);
  KVT_CHECK(evictable_found[1] == evictable_[1]);
}

}  // namespace kvtwin
