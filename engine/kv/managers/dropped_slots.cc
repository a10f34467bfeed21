#include "engine/kv/managers/dropped_slots.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {

void DroppedSlots::open(RequestIndex request, const RequestReady& event) {
  if (request >= rows_.size()) rows_.resize(request + 1);
  rows_[request].compression = {.spans = context_.retention.spans_of(event)};
}

void DroppedSlots::begin(RequestIndex request) {
  Row& row = rows_[request];
  row.compression.begin(context_.progress[request].known(), 0);
  row.holds = true;
  row.slots = index_.dropped_slots(requests_[request].prefix.pin);
  index_.dropped_entries(requests_[request].prefix.pin, &row.by_page);
  row.tokens = 0;
  for (const uint16_t dropped : row.by_page) row.tokens += dropped;
}

void DroppedSlots::end(RequestIndex request) {
  Row& row = rows_[request];
  row.holds = false;
  row.tokens = row.soon = row.slots = 0;
  row.by_page.clear();
}

void DroppedSlots::swap_out(RequestIndex request) {
  KVT_CHECK(requests_[request].prefix.pin.pages == 0);
  std::erase(requests_[request].pages, kNoPage);
  rows_[request].holds = false;
}

// A position has no page if, and only if, all of its entries are dropped.
void DroppedSlots::swap_in(RequestIndex request) {
  Row& row = rows_[request];
  row.holds = true;
  std::vector<PageId> pages;
  auto next = requests_[request].pages.begin();
  for (const uint16_t dropped : row.by_page)
    pages.push_back(dropped == context_.config.page_tokens ? kNoPage : *next++);
  pages.insert(pages.end(), next, requests_[request].pages.end());
  requests_[request].pages.swap(pages);
}

uint32_t DroppedSlots::longest(const Row& row, uint32_t tokens) const {
  return tokens - (row.compression.answers > 0 ? std::max(row.tokens, row.soon) : row.tokens);
}

void DroppedSlots::write_entry(RequestIndex request, uint32_t entry, Launch* launch) {
  Row& row = rows_[request];
  PlanEntry& e = launch->entries[entry];
  const uint32_t tokens = context_.progress[request].computed;
  e.dropped = row.tokens;
  if (e.kind == EntryKind::kChunk) e.query = compressions_.query(row.compression);
  const LiveEntries live{e.context - row.tokens, tokens - row.tokens, longest(row, tokens)};
  if (compressions_.is_due(e, live, &row.compression, &context_.progress[request])) {
    const uint32_t end = compressions_.plan(entry, tokens, &row.compression, launch);
    row.soon =
        end - std::min(longest(row, tokens), context_.retention.entries_after(0, end, row.compression.spans));
    ++row.compression.answers;
    launch->decisive = true;
  }
}

uint32_t DroppedSlots::coalescible_steps(const Launch& launch) const {
  uint32_t steps = UINT32_MAX;
  for (const Launch::Member& member : launch.members) {
    const uint32_t tokens = context_.progress[member.request_index].computed;
    steps = std::min(steps, compressions_.steps_left(tokens, longest(rows_[member.request_index], tokens)));
  }
  return steps;
}

HeldEntries DroppedSlots::held_by(const Launch& launch) const {
  HeldEntries held;
  for (const Launch::Member& member : launch.members) {
    const Row& row = rows_[member.request_index];
    const uint32_t tokens = context_.progress[member.request_index].computed;
    held.full += tokens;
    held.kv_entries += tokens - row.tokens;
    held.slots += uint64_t{requests_[member.request_index].span() - row.slots} * context_.config.page_tokens;
    ++held.growing;
    ++held.growing_full;
  }
  return held;
}

// An impossible answer (from a modified log) is replaced by the nearest possible one.
void DroppedSlots::answered(const StepDone& event, const Launch& launch) {
  for (size_t i = 0; i < launch.compressions.size(); ++i) {
    const Compression& compression = launch.compressions[i];
    const RequestIndex request = launch.members[compression.entry].request_index;
    Row& row = rows_[request];
    // Preempted meanwhile: it starts again, and its retained KV entries are lost.
    if (!row.holds || row.compression.attempt != launch.attempts[i]) continue;
    --row.compression.answers;
    apply(request, compression, i < event.retained.size() ? event.retained[i] : CompressionOutcome{});
  }
}

// Positions without retained KV entries: pages without any others are freed.
void DroppedSlots::apply(RequestIndex request, const Compression& compression,
                         const CompressionOutcome& retained) {
  Row& row = rows_[request];
  const Pin& pin = requests_[request].prefix.pin;
  const uint32_t page = context_.config.page_tokens, end = compression.end;
  KVT_CHECK(compression.begin == 0);
  row.by_page.resize(div_ceil(end, page), 0);
  uint64_t hash = 0;
  for (uint32_t position = 0; position * page < end; ++position) {
    const uint32_t first = position * page, last = std::min(first + page, end);
    uint32_t dropped = 0;
    for (uint32_t p = first; p < last; ++p) {
      const bool alive = p / 64 >= retained.live.size() || ((retained.live[p / 64] >> (p % 64)) & 1) != 0;
      dropped += alive ? 0 : 1;
    }
    const uint32_t before = row.by_page[position];
    if (dropped <= before) continue;  // a dropped token never becomes live again
    hash = chained(hash, position, dropped);
    row.by_page[position] = static_cast<uint16_t>(dropped);
    row.tokens += dropped - before;
    held_.entries -= dropped - before;
    if (position < pin.pages && index_.sole(pin, position)) {
      index_.mark_dropped(pin, position, dropped - before);
    }
    if (dropped == page) drop_page(request, position);
  }
  context_.digest.add(DecisionDigest::kRetained, context_.steps.done, raw(requests_[request].id), hash);
}

// Frees the page at this position, unless another request may still read it.
void DroppedSlots::drop_page(RequestIndex request, uint32_t position) {
  const Pin& pin = requests_[request].prefix.pin;
  PageId page = kNoPage;
  if (position < pin.pages) {
    page = index_.take_dropped_page(pin, position);
  } else {
    std::swap(page, requests_[request].pages[position - pin.pages]);
  }
  if (page == kNoPage) return;
  ++rows_[request].slots;
  --held_.pages;
  supply_.free(page);
}

void DroppedSlots::check_invariants(RequestIndex request) const {
  const PagedRequest& r = requests_[request];
  KVT_CHECK(rows_[request].holds);
  KVT_CHECK(rows_[request].slots ==
            index_.dropped_slots(r.prefix.pin) + std::count(r.pages.begin(), r.pages.end(), kNoPage));
}

}  // namespace kvtwin
