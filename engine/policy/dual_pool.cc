#include "engine/policy/dual_pool.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

using Call = DualPool::Call;
using Wide = unsigned __int128;

void push_run(std::vector<RoleRun>* runs, const TokenRole& role, uint32_t count) {
  if (count == 0) return;
  if (!runs->empty() && runs->back().role == role) {
    runs->back().count += count;
  } else {
    runs->push_back({role, count});
  }
}

uint32_t clamp_pages(Wide pages) { return static_cast<uint32_t>(std::min<Wide>(pages, UINT32_MAX / 2)); }

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

DualDemand dual_demand(std::span<const RoleRun> runs, uint32_t last_turn, const PrecisionSpec& spec,
                       uint32_t page_tokens) {
  uint32_t cells[2] = {};
  for (const RoleRun& run : runs) cells[gets_four_bits(spec, run.role, last_turn)] += run.count;
  return dual_demand(cells[0], cells[1], page_tokens);
}

uint32_t Call::waiting_cells() const {
  uint32_t cells = 0;
  for (const RoleRun& run : waiting) cells += run.count;
  return cells;
}

DualPool::DualPool(PageId first, DualPoolSize size, uint32_t page_tokens, PageOrder order)
    : first_(raw(first)),
      first_4_(raw(first) + size.pages_2),
      page_tokens_(page_tokens),
      pool_2_(first, size.pages_2, order),
      pool_4_(PageId{first_4_}, size.pages_4, order) {
  KVT_CHECK(page_tokens > 0);
}

bool DualPool::room_for_int4(const Call& call, uint64_t cells) const {
  const uint64_t needed = div_ceil(call.cells_4 + cells, uint64_t{page_tokens_});
  return needed <= call.pages_4.size() + uint64_t{pool_4_.pages_free()};
}

void DualPool::add_int4(const TokenRole& role, uint32_t count, bool decoded, Call* call) {
  call->cells_4 += count;
  while (call->pages_4.size() * page_tokens_ < call->cells_4) call->pages_4.push_back(pool_4_.acquire());
  if (!call->runs_4.empty() && call->runs_4.back().run.role == role &&
      call->runs_4.back().decoded == decoded) {
    call->runs_4.back().run.count += count;
  } else {
    call->runs_4.push_back({{role, count}, decoded});
  }
}

bool DualPool::append_prompt(std::span<const RoleRun> runs, uint32_t last_turn, const PrecisionSpec& spec,
                             Call* call) {
  uint64_t cells[2] = {};
  for (const RoleRun& run : runs) cells[gets_four_bits(spec, run.role, last_turn)] += run.count;
  const uint64_t groups = (call->waiting_cells() + cells[0]) / page_tokens_;
  const uint64_t spilled = groups - std::min<uint64_t>(groups, pool_2_.pages_free());
  if (!room_for_int4(*call, cells[1] + spilled * page_tokens_)) return false;
  uint32_t waiting = call->waiting_cells();
  for (const RoleRun& run : runs) {
    if (gets_four_bits(spec, run.role, last_turn)) {
      add_int4(run.role, run.count, false, call);
      continue;
    }
    for (uint32_t left = run.count; left > 0;) {
      const uint32_t taken = std::min(left, page_tokens_ - waiting);
      push_run(&call->waiting, run.role, taken);
      left -= taken;
      waiting += taken;
      if (waiting < page_tokens_) continue;
      if (pool_2_.pages_free() > 0) {
        call->pages_2.push_back(pool_2_.acquire());
      } else {
        for (const RoleRun& spill : call->waiting) add_int4(spill.role, spill.count, false, call);
        call->spilled += page_tokens_;
      }
      call->waiting.clear();
      waiting = 0;
    }
  }
  return true;
}

bool DualPool::flush(Call* call) {
  if (!room_for_int4(*call, call->waiting_cells())) return false;
  for (const RoleRun& run : call->waiting) add_int4(run.role, run.count, false, call);
  call->waiting.clear();
  return true;
}

bool DualPool::append_decoded(const TokenRole& role, Call* call) {
  if (!room_for_int4(*call, 1)) return false;
  add_int4(role, 1, true, call);
  return true;
}

// Whether all cells of the call's int4 page number `page` may become int2.
bool DualPool::page_ages(const Call& call, uint32_t page, uint64_t tags, uint32_t last_turn) const {
  const uint64_t begin = uint64_t{page} * page_tokens_, end = begin + page_tokens_;
  if (end > call.cells_4) return false;
  uint64_t at = 0;
  for (const Call::Run4& run : call.runs_4) {
    const uint64_t run_end = at + run.run.count;
    if (run_end > begin && at < end) {
      if (run.decoded || ((tags >> tag_code(run.run.role, last_turn)) & 1) == 0) return false;
    }
    at = run_end;
    if (at >= end) break;
  }
  return true;
}

// Takes the cells of int4 page number `page` out of the books.
void DualPool::forget_page(uint32_t page, Call* call) const {
  const uint64_t begin = uint64_t{page} * page_tokens_, end = begin + page_tokens_;
  uint64_t at = 0;
  for (Call::Run4& run : call->runs_4) {
    const uint64_t run_end = at + run.run.count;
    const uint64_t from = std::max(at, begin), to = std::min(run_end, end);
    if (from < to) run.run.count -= static_cast<uint32_t>(to - from);
    at = run_end;
  }
  std::erase_if(call->runs_4, [](const Call::Run4& run) { return run.run.count == 0; });
  call->pages_4.erase(call->pages_4.begin() + page);
  call->cells_4 -= page_tokens_;
}

void DualPool::requantise(uint64_t tags, uint32_t last_turn, uint32_t pages_max, uint64_t stamp, Call* call,
                          std::vector<Requantised>* done) {
  for (uint32_t page = 0; page < call->pages_4.size() && pages_max > 0;) {
    if (pool_2_.pages_free() == 0) return;
    if (!page_ages(*call, page, tags, last_turn)) {
      ++page;
      continue;
    }
    const PageId source = call->pages_4[page], target = pool_2_.acquire();
    call->pages_2.push_back(target);
    forget_page(page, call);
    pool_4_.release(source, stamp);
    done->push_back({source, target});
    --pages_max;
  }
}

void DualPool::age(const PrecisionSpec& spec, uint32_t last_turn, uint64_t stamp, Call* call,
                   std::vector<Requantised>* done) {
  if (spec.ageing != Ageing::kRequantise) return;
  requantise(kAllTags & ~spec.four_bit_tags, last_turn, UINT32_MAX, stamp, call, done);
}

void DualPool::reclaim_int4(uint32_t pages, const PrecisionSpec& spec, uint32_t last_turn, uint64_t stamp,
                            Call* call, std::vector<Requantised>* done) {
  const size_t wanted = done->size() + pages;
  uint64_t tags = 0;
  for (const uint8_t tag : spec.demote_order) {
    tags |= uint64_t{1} << tag;
    requantise(tags, last_turn, static_cast<uint32_t>(wanted - done->size()), stamp, call, done);
    if (done->size() == wanted || pool_2_.pages_free() == 0) return;
  }
}

void DualPool::release(uint64_t stamp, Call* call) {
  for (const PageId page : call->pages_2) pool_2_.release(page, stamp);
  for (const PageId page : call->pages_4) pool_4_.release(page, stamp);
  *call = {};
}

void DualPool::table(const Call& call, std::vector<PageId>* pages) {
  pages->assign(call.pages_2.begin(), call.pages_2.end());
  pages->insert(pages->end(), call.pages_4.begin(), call.pages_4.end());
}

void DualPool::check_invariants(std::span<const Call* const> calls) const {
  pool_2_.check_invariants();
  pool_4_.check_invariants();
  std::vector<PageId> seen, pages;
  for (const Call* const call : calls) {
    uint64_t cells = 0;
    for (const Call::Run4& run : call->runs_4) cells += run.run.count;
    KVT_CHECK(cells == call->cells_4);
    KVT_CHECK(call->pages_4.size() == div_ceil(cells, uint64_t{page_tokens_}));
    KVT_CHECK(call->waiting_cells() < page_tokens_);
    for (const PageId page : call->pages_2) KVT_CHECK(!is_int4(page) && pool_2_.owned(page));
    for (const PageId page : call->pages_4) KVT_CHECK(is_int4(page) && pool_4_.owned(page));
    table(*call, &pages);
    seen.insert(seen.end(), pages.begin(), pages.end());
  }
  std::sort(seen.begin(), seen.end());
  KVT_CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  KVT_CHECK(seen.size() == size_t{pool_2_.pages_owned()} + pool_4_.pages_owned());
}

}  // namespace kvtwin
