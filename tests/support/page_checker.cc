#include "tests/support/page_checker.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin::testing {
namespace {

constexpr uint64_t kTombstone = UINT64_MAX;  // in a page: the cell that was here is dropped

}  // namespace

std::vector<PageChecker::Table>& PageChecker::tables(CallId call) {
  std::vector<Table>& of_call = tables_[call];
  of_call.resize(shape_.groups);
  return of_call;
}

void PageChecker::begins(CallId call) { tables_[call].assign(shape_.groups, {}); }

void PageChecker::granted(CallId call, uint32_t group, PageId page) {
  KVT_CHECK(group < shape_.groups);
  tables(call)[group].pages.push_back(page);
  sealed_.erase(page);
  const auto copied = copied_.find({call, group});
  if (copied == copied_.end()) return;
  KVT_CHECK(copied->second.front() != page);
  pages_[page] = pages_.at(copied->second.front());
  copied->second.erase(copied->second.begin());
  if (copied->second.empty()) copied_.erase(copied);
}

// A snapshot's cells are where they were; pages that are not shared are copied to the next ones granted.
void PageChecker::continued(const Adoption& adoption) {
  KVT_CHECK(keeping_ == Keeping::kMove);
  untaken_.erase(adoption.call);
  KVT_CHECK(adoption.cells.size() == shape_.groups && adoption.shared.size() == shape_.groups);
  std::vector<Table>& of_call = tables(adoption.call);
  of_call = snapshots_.at(adoption.snapshot);
  auto page = adoption.pages.begin();
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    Table& table = of_call[g];
    KVT_CHECK(table.positions.size() == adoption.cells[g]);
    for (uint32_t i = 0; i < table.pages.size(); ++i, ++page) KVT_CHECK(*page == table.pages[i]);
    const auto tail = table.pages.begin() + adoption.shared[g];
    if (tail != table.pages.end()) copied_[{adoption.call, g}].assign(tail, table.pages.end());
    table.pages.erase(tail, table.pages.end());
  }
  KVT_CHECK(page == adoption.pages.end());
}

void PageChecker::snapshot(CallId call, uint32_t snapshot, bool known) {
  const std::vector<Table>& of_call = tables(call);
  snapshots_[snapshot] = of_call;
  for (const Table& table : of_call) {
    for (const PageId page : table.pages) {
      if (sealed_.insert(page).second && !known) untaken_[call].push_back(page);
    }
  }
}

void PageChecker::adopted(const Adoption& adoption, uint32_t tokens) {
  if (!adoption.cells.empty()) return continued(adoption);
  KVT_CHECK(keeping_ == Keeping::kAll || keeping_ == Keeping::kHoles);
  Table& table = tables(adoption.call)[0];
  KVT_CHECK(table.pages.empty());
  table.pages.assign(adoption.pages.begin(), adoption.pages.end());
  // What was dropped of a page travels with it.
  for (const PageId page : table.pages) {
    const auto content = pages_.find(page);  // written in this very step: not there yet, and whole
    for (uint32_t slot = 0; slot < shape_.page_tokens && table.positions.size() < tokens; ++slot) {
      const bool dead =
          page == kNoPage || (keeping_ == Keeping::kHoles && content->second.at(slot) == kTombstone);
      KVT_CHECK(!dead || keeping_ == Keeping::kHoles);
      table.positions.push_back(dead ? kDead : static_cast<uint32_t>(table.positions.size()));
    }
  }
  KVT_CHECK(div_ceil(tokens, shape_.page_tokens) == table.pages.size());
  table.positions.resize(tokens);
}

void PageChecker::adopted_to_arena(const Adoption& adoption, uint32_t tokens) {
  const size_t count = adoption.pages.size() / 2;
  KVT_CHECK(adoption.pages.size() == 2 * count);
  for (size_t i = 0; i < count; ++i) {
    KVT_CHECK(pages_.at(adoption.pages[i]) == pages_.at(adoption.pages[count + i]));
  }
  adopted({adoption.call, adoption.pages.first(count)}, tokens);
}

void PageChecker::write(Table* table, uint32_t slot, CallId call, uint32_t position) {
  KVT_CHECK(slot / shape_.page_tokens < table->pages.size());
  const PageId id = table->pages[slot / shape_.page_tokens];
  KVT_CHECK(id != kNoPage);
  KVT_CHECK(!sealed_.contains(id));
  Content& page = pages_[id];
  const uint32_t at = slot % shape_.page_tokens;
  KVT_CHECK(at <= page.size());
  // Slot by slot; what a former owner left behind it is gone. Rings write anywhere.
  if (keeping_ != Keeping::kRing || at == page.size()) page.resize(at);
  if (at == page.size()) {
    page.push_back(tokens_->token(call, position));
  } else {
    page[at] = tokens_->token(call, position);
  }
}

void PageChecker::wrote(const PlanEntry& entry, bool staged) {
  for (const auto& [of, pages] : copied_) KVT_CHECK(of.first != entry.call);  // no page for a copy
  for (const PageId page : untaken_[entry.call]) sealed_.erase(page);
  untaken_.erase(entry.call);
  std::vector<Table>& of_call = tables(entry.call);
  if (keeping_ == Keeping::kMove || keeping_ == Keeping::kRing) {
    uint64_t cells = 0;
    for (const Table& table : of_call) cells += table.positions.size();
    KVT_CHECK(entry.live() == div_ceil<uint64_t>(cells, shape_.groups));
  }
  const uint32_t ring = shape_.ring_pages * shape_.page_tokens;
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    Table& table = of_call[g];
    const bool is_ring = shape_.rings > 0 && shape_.ring[g];
    for (uint32_t position = entry.context; position < entry.context + entry.tokens; ++position) {
      if (is_ring && table.positions.size() == ring) {
        table.positions[position % ring] = position;  // the world may overwrite what it likes
        write(&table, position % ring, entry.call, position);
        continue;
      }
      const auto slot = static_cast<uint32_t>(table.positions.size());
      KVT_CHECK(keeping_ == Keeping::kMove || keeping_ == Keeping::kRing || slot == position);
      table.positions.push_back(position);
      if (!staged) write(&table, slot, entry.call, position);
    }
  }
}

void PageChecker::reads(const PlanEntry& entry, bool staged) const {
  uint64_t cells = 0;
  for (const Table& table : tables_.at(entry.call)) {
    for (uint32_t slot = 0; slot < table.positions.size(); ++slot) {
      const uint32_t position = table.positions[slot];
      if (position == kDead || (staged && position >= entry.context)) continue;
      ++cells;
      KVT_CHECK(slot / shape_.page_tokens < table.pages.size());
      const auto page = pages_.find(table.pages[slot / shape_.page_tokens]);
      KVT_CHECK(page != pages_.end());
      KVT_CHECK(slot % shape_.page_tokens < page->second.size());
      KVT_CHECK(page->second[slot % shape_.page_tokens] == tokens_->token(entry.call, position));
    }
  }
  KVT_CHECK(keeping_ != Keeping::kAll || cells == entry.context + entry.tokens);
}

void PageChecker::choose(CallId call, uint32_t end, uint32_t group, uint32_t count,
                         std::vector<uint32_t>* candidates) const {
  std::sort(candidates->begin(), candidates->end(), [&](uint32_t a, uint32_t b) {
    return draw({seed_, raw(call), end, group, a}) < draw({seed_, raw(call), end, group, b});
  });
  candidates->resize(std::min<size_t>(candidates->size(), count));
  std::sort(candidates->begin(), candidates->end());
}

KeptCells PageChecker::compressed(const PlanEntry& entry, const Compression& c) {
  KeptCells out;
  out.call = entry.call;
  KVT_CHECK(c.end == entry.context + (c.before ? 0 : entry.tokens));
  KVT_CHECK(c.keep.empty() || c.keep.size() == shape_.groups);
  const auto forced = [&](uint32_t position) {
    return std::any_of(c.forced.begin(), c.forced.end(),
                       [&](const Compression::Forced& f) { return position >= f.begin && position < f.end; });
  };
  std::vector<Table>& of_call = tables(entry.call);
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    Table& table = of_call[g];
    std::vector<uint32_t> kept, candidates;
    for (const uint32_t position : table.positions) {
      if (position == kDead) continue;
      const bool stays = position < c.begin || forced(position);
      (stays ? kept : candidates).push_back(position);
    }
    const uint64_t any = draw({seed_, raw(entry.call), c.end, g}) % (candidates.size() + 1);
    choose(entry.call, c.end, g, c.keep.empty() ? static_cast<uint32_t>(any) : c.keep[g], &candidates);
    kept.insert(kept.end(), candidates.begin(), candidates.end());
    std::sort(kept.begin(), kept.end());
    out.counts.push_back(static_cast<uint32_t>(kept.size()));
    if (keeping_ == Keeping::kHoles) {
      out.live.assign(div_ceil(c.end - c.begin, 64u), 0);
      for (const uint32_t position : kept) out.live[position / 64] |= uint64_t{1} << (position % 64);
      for (uint32_t position = 0; position < c.end; ++position) {
        const bool dies =
            table.positions[position] != kDead && ((out.live[position / 64] >> (position % 64)) & 1) == 0;
        if (!dies) continue;
        table.positions[position] = kDead;
        pages_[table.pages[position / shape_.page_tokens]][position % shape_.page_tokens] = kTombstone;
      }
      continue;
    }
    table.positions = kept;
    const size_t pages = div_ceil<size_t>(kept.size(), shape_.page_tokens);
    KVT_CHECK(pages <= table.pages.size());
    // T-1: a reservation is exact, so nothing is ever given back.
    KVT_CHECK(!c.staged || pages == table.pages.size());
    table.pages.resize(pages);
    // What was not ranked stays where it is.
    const auto ranked = std::lower_bound(kept.begin(), kept.end(), c.begin);
    for (auto slot = static_cast<uint32_t>(ranked - kept.begin()); slot < kept.size(); ++slot) {
      write(&table, slot, entry.call, kept[slot]);
    }
  }
  return out;
}

void PageChecker::transfer_started(const StartTransfer& start) {
  const std::span<const PageId> source = start.source, target = start.target;
  const TransferId transfer = start.transfer;
  // Whole pages travel, and the last one of a call that was sent away.
  const bool part = start.kind == TransferKind::kPreempt || start.kind == TransferKind::kResume;
  KVT_CHECK(!copies_.contains(transfer));
  KVT_CHECK(!source.empty());
  KVT_CHECK(source.size() == target.size());
  Copy& copy = copies_[transfer];
  copy.source.assign(source.begin(), source.end());
  copy.target.assign(target.begin(), target.end());
  copy.leaves_disk = start.source_tier == Tier::kDisk;
  for (const PageId page : source) {
    KVT_CHECK(pages_[page].size() == shape_.page_tokens || (part && page == source.back()));
    copy.at_start.push_back(pages_[page]);
  }
}

void PageChecker::receive_started(TransferId transfer, const PageChecker& from,
                                  std::span<const PageId> source, std::span<const PageId> target) {
  KVT_CHECK(!copies_.contains(transfer));
  KVT_CHECK(source.size() == target.size());
  Copy& copy = copies_[transfer];
  copy.from = &from;
  copy.source.assign(source.begin(), source.end());
  copy.target.assign(target.begin(), target.end());
  for (size_t i = 0; i < source.size(); ++i) {
    copy.at_start.push_back(from.pages_.at(source[i]));
    KVT_CHECK(!copy.at_start[i].empty());  // what is handed over has been computed
    KVT_CHECK(i + 1 == source.size() || copy.at_start[i].size() == shape_.page_tokens);
  }
}

void PageChecker::transfer_ended(TransferId transfer, bool arrived) {
  const auto entry = copies_.find(transfer);
  KVT_CHECK(entry != copies_.end());
  const Copy& copy = entry->second;
  for (size_t i = 0; i < copy.source.size(); ++i) {
    const auto& origin = copy.from == nullptr ? pages_ : copy.from->pages_;
    KVT_CHECK(origin.at(copy.source[i]) == copy.at_start[i]);  // nobody wrote to it meanwhile
    pages_[copy.target[i]] = arrived ? copy.at_start[i] : Content{};
    if (arrived && copy.leaves_disk) pages_[copy.source[i]].clear();  // nobody may find it there again
  }
  copies_.erase(entry);
}

}  // namespace kvtwin::testing
