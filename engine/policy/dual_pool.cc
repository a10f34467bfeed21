#include "engine/policy/dual_pool.h"

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

DualPoolSize split_dual_pool(uint64_t bytes, uint64_t bits_above_two, uint64_t page_bytes_2,
                             uint64_t page_bytes_4) {
  constexpr uint64_t kTwo = uint64_t{2} << 32;
  KVT_CHECK(bits_above_two <= kTwo && page_bytes_2 > 0 && page_bytes_4 > 0);
  const Wide parts_2 = kTwo - bits_above_two, parts_4 = bits_above_two;
  const Wide bytes_of_all_parts = parts_2 * page_bytes_2 + parts_4 * page_bytes_4;
  return {clamp_pages(parts_2 * bytes / bytes_of_all_parts),
          clamp_pages(parts_4 * bytes / bytes_of_all_parts)};
}

DualDemand dual_demand(uint32_t cells_2, uint32_t cells_4, uint32_t page_tokens) {
  return {cells_2 / page_tokens, div_ceil(cells_4 + cells_2 % page_tokens, page_tokens)};
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

DualPool::DualPool(DualPoolSize size, uint32_t page_tokens, bool ages)
    : size_(size),
      page_tokens_(page_tokens),
      ages_(ages),
      pool_2_(PageId{0}, size.pages_2, PageOrder::kLowestFirst),
      pool_4_(PageId{size.pages_2}, size.pages_4, PageOrder::kLowestFirst),
      pages_(size_t{size.pages_2} + size.pages_4),
      seen_(pages_.size(), 0),
      seen_cells_(pages_.size(), 0) {
  KVT_CHECK(page_tokens > 0);
}

// --- which pages frames have cells in

void DualPool::link(PageId frame, PageId page, uint32_t cells) {
  Frame& f = frames_[raw(frame)];
  for (uint32_t i = 0; i < f.count; ++i) {
    if (f.links[i].page != page) continue;
    f.links[i].cells += cells;
    return;
  }
  KVT_CHECK(f.count < kLinks);
  f.links[f.count++] = {page, cells};
  const bool four = is_int4(page);
  loose_[four] -= loose(page) ? 1 : 0;
  Page& p = pages_[raw(page)];
  ++p.frames;
  p.held += f.held ? 1 : 0;
  loose_[four] += loose(page) ? 1 : 0;
}

void DualPool::drop_link(PageId frame, uint32_t index) {
  Frame& f = frames_[raw(frame)];
  const PageId page = f.links[index].page;
  const bool four = is_int4(page);
  loose_[four] -= loose(page) ? 1 : 0;
  Page& p = pages_[raw(page)];
  --p.frames;
  p.held -= f.held ? 1 : 0;
  loose_[four] += loose(page) ? 1 : 0;
  f.links[index] = f.links[--f.count];
}

void DualPool::unlink(PageId frame, PageId page, uint32_t cells) {
  Frame& f = frames_[raw(frame)];
  uint32_t i = 0;
  while (f.links[i].page != page) {
    ++i;
    KVT_CHECK(i < f.count);
  }
  KVT_CHECK(f.links[i].cells >= cells);
  f.links[i].cells -= cells;
  if (f.links[i].cells == 0) drop_link(frame, i);
}

// Cells [offset, offset + count) of the frame are in `page` now.
void DualPool::place(PageId frame, uint32_t offset, uint32_t count, PageId page) {
  if (!ages_) return;
  std::vector<PageId>& at = frames_[raw(frame)].at;
  at.resize(page_tokens_, kNoPage);
  std::fill_n(at.begin() + offset, count, page);
}

void DualPool::hold(std::span<const PageId> frames, bool held) {
  for (const PageId frame : frames) {
    if (raw(frame) >= frames_.size()) frames_.resize(raw(frame) + size_t{1});
    Frame& f = frames_[raw(frame)];
    KVT_CHECK(f.held != held);
    f.held = held;
    for (uint32_t i = 0; i < f.count; ++i) {
      const PageId page = f.links[i].page;
      const bool four = is_int4(page);
      loose_[four] -= loose(page) ? 1 : 0;
      pages_[raw(page)].held += held ? 1 : ~0u;  // +1 or -1, modulo 2^32
      loose_[four] += loose(page) ? 1 : 0;
    }
  }
}

void DualPool::release(PageId frame) {
  Frame& f = frames_[raw(frame)];
  while (f.count > 0) {
    const PageId page = f.links[f.count - 1].page;
    drop_link(frame, f.count - 1);
    if (pages_[raw(page)].frames == 0) (is_int4(page) ? pool_4_ : pool_2_).release(page, 0);
  }
  f.held = false;
  f.at.clear();
}

void DualPool::age(const Call& call, std::span<const PageId> prefix, std::span<const uint8_t> alone,
                   uint32_t pages_2, std::vector<CellAgeing>* moves) {
  KVT_CHECK(ages_ && pages_2 <= pool_2_.pages_free());
  const auto end = static_cast<uint32_t>(prefix.size()) * page_tokens_;
  due_.clear();
  uint32_t first = 0;
  for (const BitRun& bits : call.bits) {
    for (uint32_t p = first; !bits.four && p < std::min(end, first + bits.count); ++p) {
      const uint32_t index = p / page_tokens_;
      if (alone[index] != 0 && ages_now(frames_[raw(prefix[index])], p % page_tokens_)) due_.push_back(p);
    }
    first += bits.count;
    if (first >= end) break;
  }
  const auto groups = std::min(pages_2, static_cast<uint32_t>(due_.size()) / page_tokens_);
  for (uint32_t i = 0; i < groups * page_tokens_; ++i) {
    const PageId target = i % page_tokens_ == 0 ? pool_2_.acquire() : moves->back().target;
    const PageId frame = prefix[due_[i] / page_tokens_];
    const uint32_t offset = due_[i] % page_tokens_;
    const PageId source = frames_[raw(frame)].at[offset];
    unlink(frame, source, 1);
    link(frame, target, 1);
    place(frame, offset, 1, target);
    if (pages_[raw(source)].frames == 0) pool_4_.release(source, 0);
    const bool follows = i % page_tokens_ != 0 && moves->back().source == source &&
                         moves->back().position + moves->back().count == due_[i];
    if (follows) {
      ++moves->back().count;
    } else {
      moves->push_back({source, target, due_[i], 1});
    }
  }
}

// --- a call's cells

PageId DualPool::frame_of(uint32_t position, const Frames& frames) const {
  return frames.ids[position / page_tokens_ - frames.first];
}

void DualPool::begin(uint32_t tokens, std::span<const PageId> adopted, Call* call,
                     std::vector<PageId>* pages) {
  reset(call);
  uint32_t left = call->at = tokens;
  while (call->run < call->bits.size() && left >= call->bits[call->run].count)
    left -= call->bits[call->run++].count;
  call->used = call->run < call->bits.size() ? left : 0;
  ++begun_;
  for (const PageId frame : adopted) {
    const Frame& f = frames_[raw(frame)];
    for (uint32_t i = 0; i < f.count; ++i) {
      const Link& has = f.links[i];
      pages->push_back(has.page);
      if (!is_int4(has.page)) call->adopted_cells_2 += has.cells;
      const bool is_new = std::exchange(seen_[raw(has.page)], begun_) != begun_;
      uint32_t& cells = seen_cells_[raw(has.page)];
      cells = (is_new ? 0 : cells) + has.cells;
      call->adopted_pages += is_new ? 1 : 0;
      if (!is_int4(has.page)) continue;
      call->adopted_in_part += is_new ? 1 : 0;
      call->adopted_in_part -= cells == page_tokens_ ? 1 : 0;
    }
    pages->push_back(kNoPage);
  }
}

void DualPool::reset(Call* call) {
  call->waiting.clear();
  call->pages_4.clear();
  call->at = call->used = call->cells_4 = call->pages_2 = call->spilled = 0;
  call->adopted_pages = call->adopted_cells_2 = call->adopted_in_part = 0;
  call->run = 0;
}

// The next `tokens` cells as runs of equal bits, and the end of the prompt where they pass it.
template <typename Cells, typename Flush>
void DualPool::walk(const Call& call, uint32_t tokens, Cells cells, Flush flush) {
  const uint32_t end = call.at + tokens;
  uint32_t at = call.at, used = call.used;
  size_t run = call.run;
  while (at < end && at < call.prompt) {
    const BitRun bits = run < call.bits.size() ? call.bits[run] : BitRun{call.prompt - at + used, true};
    const uint32_t count = std::min(bits.count - used, std::min(end, call.prompt) - at);
    cells(at, count, bits.four);
    at += count;
    used += count;
    if (used == bits.count) {
      ++run;
      used = 0;
    }
  }
  if (call.at < call.prompt && at == call.prompt) flush();
  if (at < end) cells(at, end - at, true);
}

DualDemand DualPool::demand_of(const Call& call, uint32_t tokens, uint32_t pages_2, uint32_t page_tokens) {
  uint64_t cells_2 = call.waiting.size(), cells_4 = 0;
  bool flushes = false;
  walk(
      call, tokens, [&](uint32_t, uint32_t count, bool four) { (four ? cells_4 : cells_2) += count; },
      [&] { flushes = true; });
  const uint64_t groups = cells_2 / page_tokens, taken = std::min<uint64_t>(groups, pages_2);
  cells_4 += call.cells_4 + (groups - taken) * page_tokens + (flushes ? cells_2 % page_tokens : 0);
  const uint64_t needed = div_ceil(cells_4, uint64_t{page_tokens});
  const uint64_t more = needed - std::min<uint64_t>(needed, call.pages_4.size());
  return {static_cast<uint32_t>(taken), static_cast<uint32_t>(std::min<uint64_t>(more, UINT32_MAX))};
}

void DualPool::put_4(uint32_t position, uint32_t count, const Frames& frames, Call* call,
                     std::vector<PageId>* taken) {
  while (count > 0) {
    const uint32_t page = call->cells_4 / page_tokens_;
    if (page == call->pages_4.size()) {
      call->pages_4.push_back(pool_4_.acquire());
      taken->push_back(call->pages_4.back());
    }
    const uint32_t room =
        std::min(page_tokens_ - call->cells_4 % page_tokens_, page_tokens_ - position % page_tokens_);
    const uint32_t some = std::min(count, room);
    link(frame_of(position, frames), call->pages_4[page], some);
    place(frame_of(position, frames), position % page_tokens_, some, call->pages_4[page]);
    call->cells_4 += some;
    position += some;
    count -= some;
  }
}

void DualPool::append(uint32_t tokens, uint32_t pages_2, const Frames& frames, Call* call,
                      std::vector<PageId>* taken, std::vector<BitRun>* bits) {
  const auto to_4 = [&] {
    for (const uint32_t position : call->waiting) put_4(position, 1, frames, call, taken);
    call->waiting.clear();
  };
  walk(
      *call, tokens,
      [&](uint32_t position, uint32_t count, bool four) {
        push_bits(bits, count, four);
        if (four) return put_4(position, count, frames, call, taken);
        for (uint32_t i = 0; i < count; ++i) {
          call->waiting.push_back(position + i);
          if (call->waiting.size() < page_tokens_) continue;
          if (pages_2 == 0) {
            call->spilled += page_tokens_;
            to_4();
            continue;
          }
          --pages_2;
          ++call->pages_2;
          taken->push_back(pool_2_.acquire());
          for (const uint32_t cell : call->waiting) {
            link(frame_of(cell, frames), taken->back(), 1);
            place(frame_of(cell, frames), cell % page_tokens_, 1, taken->back());
          }
          call->waiting.clear();
        }
      },
      [&] {
        to_4();
        bits->push_back({0, true});
      });
  uint32_t left = tokens;
  while (left > 0 && call->run < call->bits.size()) {
    const uint32_t some = std::min(left, call->bits[call->run].count - call->used);
    call->used += some;
    left -= some;
    if (call->used < call->bits[call->run].count) break;
    ++call->run;
    call->used = 0;
  }
  call->at += tokens;
}

PageId DualPool::take_ahead(Call* call) {
  call->pages_4.push_back(pool_4_.acquire());
  return call->pages_4.back();
}

void DualPool::truncate(uint32_t tokens, const Frames& frames, Call* call) {
  KVT_CHECK(tokens >= call->prompt || tokens == call->at);
  while (call->at > tokens) {
    const uint32_t last = call->at - 1;
    const PageId page = call->pages_4[(call->cells_4 - 1) / page_tokens_];
    const uint32_t in_page = (call->cells_4 - 1) % page_tokens_ + 1;
    const uint32_t some = std::min({call->at - tokens, in_page, last % page_tokens_ + 1});
    unlink(frame_of(last, frames), page, some);
    place(frame_of(last, frames), last % page_tokens_ + 1 - some, some, kNoPage);
    call->cells_4 -= some;
    call->at -= some;
  }
}

void DualPool::give_back_page(const Frames& frames, Call* call) {
  const auto before = static_cast<uint32_t>(call->pages_4.size() - 1) * page_tokens_;
  if (call->cells_4 > before) truncate(call->at - (call->cells_4 - before), frames, call);
  const PageId page = call->pages_4.back();
  KVT_CHECK(pages_[raw(page)].frames == 0);
  pool_4_.unacquire(page);
  call->pages_4.pop_back();
}

void DualPool::check_invariants(uint64_t frames_held) const {
  pool_2_.check_invariants();
  pool_4_.check_invariants();
  std::vector<uint64_t> cells(pages_.size(), 0);
  std::vector<Page> found(pages_.size());
  for (const Frame& frame : frames_) {
    frames_held -= frame.held ? 1 : 0;
    for (uint32_t i = 0; i < frame.count; ++i) {
      const uint32_t page = raw(frame.links[i].page);
      cells[page] += frame.links[i].cells;
      const auto here = std::count(frame.at.begin(), frame.at.end(), frame.links[i].page);
      KVT_CHECK(!ages_ || here == static_cast<ptrdiff_t>(frame.links[i].cells));
      ++found[page].frames;
      found[page].held += frame.held ? 1 : 0;
    }
  }
  KVT_CHECK(frames_held == 0);
  uint32_t loose_found[2] = {0, 0};
  for (uint32_t page = 0; page < pages_.size(); ++page) {
    KVT_CHECK(cells[page] <= page_tokens_);
    KVT_CHECK(found[page].frames == pages_[page].frames);
    KVT_CHECK(found[page].held == pages_[page].held);
    KVT_CHECK(pool(is_int4(PageId{page})).owned(PageId{page}) == (found[page].frames > 0));
    loose_found[is_int4(PageId{page})] += loose(PageId{page}) ? 1 : 0;
  }
  KVT_CHECK(loose_found[0] == loose_[0]);
  KVT_CHECK(loose_found[1] == loose_[1]);
}

}  // namespace kvtwin
