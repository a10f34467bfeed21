#include "tests/support/page_checker.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin::testing {
namespace {

constexpr uint64_t kTombstone = UINT64_MAX;  // content of a slot whose KV entry was dropped

}  // namespace

std::vector<PageChecker::Table>& PageChecker::tables(RequestId request) {
  std::vector<Table>& of_request = tables_[request];
  of_request.resize(shape_.groups);
  return of_request;
}

void PageChecker::begins(RequestId request) { tables_[request].assign(shape_.groups, {}); }

void PageChecker::allocated(RequestId request, uint32_t group, PageId page) {
  KVT_CHECK(group < shape_.groups);
  tables(request)[group].pages.push_back(page);
  sealed_.erase(page);
  const auto copied = copied_.find({request, group});
  if (copied == copied_.end()) return;
  KVT_CHECK(copied->second.front() != page);
  pages_[page] = pages_.at(copied->second.front());
  copied->second.erase(copied->second.begin());
  if (copied->second.empty()) copied_.erase(copied);
}

// A prefix checkpoint's shared pages are used in place; the others are copied to the next pages allocated.
void PageChecker::continued(const PrefixHit& prefix_hit) {
  KVT_CHECK(slot_retention_ == SlotRetention::kMove);
  untaken_.erase(prefix_hit.request);
  KVT_CHECK(prefix_hit.kv_entries.size() == shape_.groups && prefix_hit.shared.size() == shape_.groups);
  std::vector<Table>& of_request = tables(prefix_hit.request);
  of_request = prefix_checkpoints_.at(prefix_hit.prefix_checkpoint);
  auto page = prefix_hit.pages.begin();
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    Table& table = of_request[g];
    KVT_CHECK(table.positions.size() == prefix_hit.kv_entries[g]);
    for (uint32_t i = 0; i < table.pages.size(); ++i, ++page) {
      table.pages[i] = *page;  // others than before, if it was loaded from the host
      sealed_.insert(*page);
    }
    const auto tail = table.pages.begin() + prefix_hit.shared[g];
    if (tail != table.pages.end()) copied_[{prefix_hit.request, g}].assign(tail, table.pages.end());
    table.pages.erase(tail, table.pages.end());
  }
  KVT_CHECK(page == prefix_hit.pages.end());
}

void PageChecker::prefix_checkpoint(RequestId request, uint32_t prefix_checkpoint, bool known) {
  const std::vector<Table>& of_request = tables(request);
  prefix_checkpoints_[prefix_checkpoint] = of_request;
  for (const Table& table : of_request) {
    for (const PageId page : table.pages) {
      if (sealed_.insert(page).second && !known) untaken_[request].push_back(page);
    }
  }
}

void PageChecker::reused(const PrefixHit& prefix_hit, uint32_t tokens) {
  if (!prefix_hit.kv_entries.empty()) return continued(prefix_hit);
  KVT_CHECK(slot_retention_ == SlotRetention::kAll || slot_retention_ == SlotRetention::kInPlace);
  Table& table = tables(prefix_hit.request)[0];
  KVT_CHECK(table.pages.empty());
  table.pages.assign(prefix_hit.pages.begin(), prefix_hit.pages.end());
  // A reused page brings its dropped slots with it.
  for (const PageId page : table.pages) {
    const auto content = pages_.find(page);  // absent if this step writes it: nothing is dropped
    for (uint32_t slot = 0; slot < shape_.page_tokens && table.positions.size() < tokens; ++slot) {
      const bool dropped_tokens = page == kNoPage || (slot_retention_ == SlotRetention::kInPlace &&
                                                      content->second.at(slot) == kTombstone);
      KVT_CHECK(!dropped_tokens || slot_retention_ == SlotRetention::kInPlace);
      table.positions.push_back(dropped_tokens ? kDropped : static_cast<uint32_t>(table.positions.size()));
    }
  }
  KVT_CHECK(div_ceil(tokens, shape_.page_tokens) == table.pages.size());
  table.positions.resize(tokens);
}

void PageChecker::swapped_in(const PrefixHit& prefix_hit, uint32_t tokens) {
  std::vector<Table>& of_request = tables(prefix_hit.request);
  const bool by_position =
      slot_retention_ == SlotRetention::kAll || slot_retention_ == SlotRetention::kInPlace;
  KVT_CHECK(by_position == prefix_hit.kv_entries.empty());
  untaken_.erase(prefix_hit.request);
  std::span<const PageId> pages = prefix_hit.pages;
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    Table& table = of_request[g];
    KVT_CHECK(table.positions.size() == (by_position ? tokens : prefix_hit.kv_entries[g]));
    const size_t count = div_ceil<size_t>(table.positions.size(), shape_.page_tokens);
    KVT_CHECK(by_position || prefix_hit.shared[g] == count);
    table.pages.assign(pages.begin(), pages.begin() + static_cast<ptrdiff_t>(count));
    pages = pages.subspan(count);
  }
  KVT_CHECK(pages.empty());
}

void PageChecker::reused_resident(const PrefixHit& prefix_hit, uint32_t tokens) {
  const size_t count = prefix_hit.pages.size() / 2;
  KVT_CHECK(prefix_hit.pages.size() == 2 * count);
  for (size_t i = 0; i < count; ++i) {
    KVT_CHECK(pages_.at(prefix_hit.pages[i]) == pages_.at(prefix_hit.pages[count + i]));
  }
  reused({prefix_hit.request, prefix_hit.pages.first(count)}, tokens);
}

void PageChecker::write(Table* table, uint32_t slot, RequestId request, uint32_t position) {
  KVT_CHECK(slot / shape_.page_tokens < table->pages.size());
  const PageId id = table->pages[slot / shape_.page_tokens];
  KVT_CHECK(id != kNoPage);
  KVT_CHECK(!sealed_.contains(id));
  Content& page = pages_[id];
  const uint32_t at = slot % shape_.page_tokens;
  KVT_CHECK(at <= page.size());
  // Slots are written in order and discard the former owner's later slots. Rings write in any order.
  if (slot_retention_ != SlotRetention::kRing || at == page.size()) page.resize(at);
  if (at == page.size()) {
    page.push_back(tokens_->token(request, position));
  } else {
    page[at] = tokens_->token(request, position);
  }
}

void PageChecker::wrote(const PlanEntry& entry, bool staged) {
  for (const auto& [of, pages] : copied_) KVT_CHECK(of.first != entry.request);  // no page for a copy
  for (const PageId page : untaken_[entry.request]) sealed_.erase(page);
  untaken_.erase(entry.request);
  std::vector<Table>& of_request = tables(entry.request);
  if (slot_retention_ == SlotRetention::kMove || slot_retention_ == SlotRetention::kRing) {
    uint64_t kv_entries = 0;
    for (const Table& table : of_request) kv_entries += table.positions.size();
    KVT_CHECK(entry.live() == div_ceil<uint64_t>(kv_entries, shape_.groups));
  }
  const uint32_t ring = shape_.ring_pages * shape_.page_tokens;
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    Table& table = of_request[g];
    const bool is_ring = shape_.rings > 0 && shape_.ring[g];
    for (uint32_t position = entry.context; position < entry.context + entry.stored(); ++position) {
      if (is_ring && table.positions.size() == ring) {
        table.positions[position % ring] = position;  // the backend chooses which entry to overwrite
        write(&table, position % ring, entry.request, position);
        continue;
      }
      const auto slot = static_cast<uint32_t>(table.positions.size());
      KVT_CHECK(slot_retention_ == SlotRetention::kMove || slot_retention_ == SlotRetention::kRing ||
                slot == position);
      table.positions.push_back(position);
      if (!staged) write(&table, slot, entry.request, position);
    }
  }
}

void PageChecker::reads(const PlanEntry& entry, bool staged) const {
  uint64_t kv_entries = 0;
  for (const Table& table : tables_.at(entry.request)) {
    for (uint32_t slot = 0; slot < table.positions.size(); ++slot) {
      const uint32_t position = table.positions[slot];
      if (position == kDropped || (staged && position >= entry.context)) continue;
      ++kv_entries;
      KVT_CHECK(slot / shape_.page_tokens < table.pages.size());
      const auto page = pages_.find(table.pages[slot / shape_.page_tokens]);
      KVT_CHECK(page != pages_.end());
      KVT_CHECK(slot % shape_.page_tokens < page->second.size());
      KVT_CHECK(page->second[slot % shape_.page_tokens] == tokens_->token(entry.request, position));
    }
  }
  KVT_CHECK(slot_retention_ != SlotRetention::kAll || kv_entries == entry.context + entry.stored());
}

void PageChecker::choose(RequestId request, uint32_t end, uint32_t group, uint32_t count,
                         std::vector<uint32_t>* candidates) const {
  std::sort(candidates->begin(), candidates->end(), [&](uint32_t a, uint32_t b) {
    return draw({seed_, raw(request), end, group, a}) < draw({seed_, raw(request), end, group, b});
  });
  candidates->resize(std::min<size_t>(candidates->size(), count));
  std::sort(candidates->begin(), candidates->end());
}

RetainedEntries PageChecker::compressed(const PlanEntry& entry, const Compression& c) {
  RetainedEntries out;
  out.request = entry.request;
  KVT_CHECK(c.end == entry.context + (c.before ? 0 : entry.stored()));
  KVT_CHECK(c.keep.empty() || c.keep.size() == shape_.groups);
  const auto forced = [&](uint32_t position) {
    return std::any_of(c.forced.begin(), c.forced.end(),
                       [&](const Compression::Forced& f) { return position >= f.begin && position < f.end; });
  };
  std::vector<Table>& of_request = tables(entry.request);
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    Table& table = of_request[g];
    std::vector<uint32_t> retained, candidates;
    for (const uint32_t position : table.positions) {
      if (position == kDropped) continue;
      const bool stays = position < c.begin || forced(position);
      (stays ? retained : candidates).push_back(position);
    }
    const uint64_t any = draw({seed_, raw(entry.request), c.end, g}) % (candidates.size() + 1);
    choose(entry.request, c.end, g, c.keep.empty() ? static_cast<uint32_t>(any) : c.keep[g], &candidates);
    retained.insert(retained.end(), candidates.begin(), candidates.end());
    std::sort(retained.begin(), retained.end());
    out.counts.push_back(static_cast<uint32_t>(retained.size()));
    if (slot_retention_ == SlotRetention::kInPlace) {
      out.live.assign(div_ceil(c.end - c.begin, 64u), 0);
      for (const uint32_t position : retained) out.live[position / 64] |= uint64_t{1} << (position % 64);
      for (uint32_t position = 0; position < c.end; ++position) {
        const bool dies =
            table.positions[position] != kDropped && ((out.live[position / 64] >> (position % 64)) & 1) == 0;
        if (!dies) continue;
        table.positions[position] = kDropped;
        pages_[table.pages[position / shape_.page_tokens]][position % shape_.page_tokens] = kTombstone;
      }
      continue;
    }
    table.positions = retained;
    const size_t pages = div_ceil<size_t>(retained.size(), shape_.page_tokens);
    KVT_CHECK(pages <= table.pages.size());
    // T-1: a reservation is exact, so compression frees no pages.
    KVT_CHECK(!c.staged || pages == table.pages.size());
    table.pages.resize(pages);
    // Entries that were not ranked stay in place.
    const auto ranked = std::lower_bound(retained.begin(), retained.end(), c.begin);
    for (auto slot = static_cast<uint32_t>(ranked - retained.begin()); slot < retained.size(); ++slot) {
      write(&table, slot, entry.request, retained[slot]);
    }
  }
  return out;
}

void PageChecker::transfer_started(const StartTransfer& start) {
  const std::span<const PageId> source = start.source, target = start.target;
  const TransferId transfer = start.transfer;
  // All transferred pages are full, except the last one of each group of a request that is swapped out or in,
  // or of a prefix checkpoint.
  const bool compressed = slot_retention_ == SlotRetention::kMove,
             part = compressed || start.kind == TransferKind::kSwapOut || start.kind == TransferKind::kSwapIn;
  KVT_CHECK(!copies_.contains(transfer));
  KVT_CHECK(!source.empty());
  KVT_CHECK(source.size() == target.size());
  Copy& copy = copies_[transfer];
  copy.source.assign(source.begin(), source.end());
  copy.target.assign(target.begin(), target.end());
  for (const PageId page : target) sealed_.erase(page);
  copy.leaves_disk = start.source_tier == Tier::kDisk;
  for (const PageId page : source) {
    KVT_CHECK(!pages_[page].empty());
    KVT_CHECK(pages_[page].size() == shape_.page_tokens ||
              (part && (compressed || shape_.groups > 1 || page == source.back())));
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
    KVT_CHECK(!copy.at_start[i].empty());  // a page handed over has been computed
    KVT_CHECK(i + 1 == source.size() || copy.at_start[i].size() == shape_.page_tokens);
  }
}

void PageChecker::transfer_ended(TransferId transfer, bool arrived) {
  const auto entry = copies_.find(transfer);
  KVT_CHECK(entry != copies_.end());
  const Copy& copy = entry->second;
  for (size_t i = 0; i < copy.source.size(); ++i) {
    const auto& origin = copy.from == nullptr ? pages_ : copy.from->pages_;
    KVT_CHECK(origin.at(copy.source[i]) == copy.at_start[i]);  // unchanged during the copy
    pages_[copy.target[i]] = arrived ? copy.at_start[i] : Content{};
    if (arrived && copy.leaves_disk) pages_[copy.source[i]].clear();  // the disk copy must not be read again
  }
  copies_.erase(entry);
}

}  // namespace kvtwin::testing
