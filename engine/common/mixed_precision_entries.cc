#include "engine/common/mixed_precision_entries.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin::cpu {
namespace {

constexpr uint32_t kMoved = UINT32_MAX;  // replaces the position of a KV entry that moved to another page

}  // namespace

// Moves whole groups from int4 pages to int2 pages.
std::vector<MixedPrecisionEntries::Aged> MixedPrecisionEntries::age(
    std::span<const Requantisation> requantisations) {
  std::vector<Aged> out;
  std::vector<Place> from;
  std::vector<uint32_t> positions;
  for (const Requantisation& ageing : requantisations) {
    KVT_CHECK(is_int2(raw(ageing.target)) && !is_int2(raw(ageing.source)));
    std::vector<uint32_t>& kv_entries = pages_[raw(ageing.source)];
    for (uint32_t position = ageing.position; position < ageing.position + ageing.count; ++position) {
      const auto kv_entry = std::find(kv_entries.begin(), kv_entries.end(), position);
      KVT_CHECK(kv_entry != kv_entries.end());
      *kv_entry = kMoved;
      from.push_back({raw(ageing.source), static_cast<uint32_t>(kv_entry - kv_entries.begin())});
      positions.push_back(position);
    }
    if (from.size() < page_tokens_) continue;
    KVT_CHECK(from.size() == page_tokens_);
    out.push_back({ageing.target, std::move(from)});
    pages_[raw(ageing.target)] = std::move(positions);
    from.clear();
    positions.clear();
  }
  KVT_CHECK(from.empty());
  return out;
}

void MixedPrecisionEntries::place(const LaunchStep& launch, uint32_t offset,
                                  std::span<const PlanEntry> entries, std::vector<RequestPart>* request_parts,
                                  std::vector<PageId>* taken) {
  request_parts->resize(entries.size());
  uint32_t row = 0;
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const PlanEntry& entry = entries[i];
    KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
    if (offset == 0 && entry.first) {
      std::span<const PageId> reused;
      for (const PrefixHit& prefix_hit : launch.prefix_hits) {
        if (prefix_hit.request == entry.request) reused = prefix_hit.pages;
      }
      reuse(entry, reused);
    }
    Allocations allocations;
    allocations.taken = taken;
    for (const PageAllocation& allocation : launch.allocations) {
      if (allocation.offset == offset && allocation.entry == i) allocations.pages.push_back(allocation.page);
    }
    RequestPart& request_part = (*request_parts)[i];
    Request& request = requests_.at(entry.request);
    KVT_CHECK(request.places.size() == entry.context);
    request_part.chunk = entry.kind == EntryKind::kChunk;
    request_part.row = row;
    request_part.tokens = entry.tokens;
    request_part.context = entry.context;
    request_part.waiting_page = request.waiting_page;
    row += entry.tokens;
    request_part.actions.clear();
    request_part.packed.clear();
    if (request_part.chunk) request_part.history = request.places;  // without its own tokens
    place_rows(launch, i, entry, &allocations, &request, &request_part);
    KVT_CHECK(allocations.next == allocations.pages.size());
    if (!request_part.chunk) request_part.history = request.places;
  }
}

// Takes from each page the KV entries of the logical page under which it is listed (commands.h, PrefixHit).
void MixedPrecisionEntries::reuse(const PlanEntry& entry, std::span<const PageId> pages) {
  const auto [found_request, fresh] = requests_.try_emplace(entry.request);
  Request& request = found_request->second;
  const uint32_t waiting_page = fresh ? take_waiting_page() : request.waiting_page;
  const Request before = std::exchange(request, {});
  request.waiting_page = waiting_page;
  request.places.resize(entry.context);
  uint32_t logical_page = 0, found = 0;
  for (const PageId page : pages) {
    if (page == kNoPage) {
      ++logical_page;
      continue;
    }
    const std::vector<uint32_t>& kv_entries = pages_[raw(page)];
    for (uint32_t slot = 0; slot < kv_entries.size(); ++slot) {
      if (kv_entries[slot] / page_tokens_ != logical_page) continue;
      request.places.at(kv_entries[slot]) = {raw(page), slot};
      ++found;
    }
  }
  KVT_CHECK(found == entry.context);
  if (!entry.swapped_in || before.in_tail == 0) return;
  KVT_CHECK(before.places.size() == entry.context);
  const auto newest = std::find_if(before.places.begin(), before.places.end(), [&](const Place& place) {
    return place.page == raw(before.tail) && place.slot + 1 == before.in_tail;
  });
  KVT_CHECK(newest != before.places.end());
  request.tail = PageId{request.places[static_cast<size_t>(newest - before.places.begin())].page};
  request.in_tail = before.in_tail;
}

std::vector<uint32_t>& MixedPrecisionEntries::slots_of(PageId page) {
  if (raw(page) >= pages_.size()) pages_.resize(raw(page) + size_t{1});
  return pages_[raw(page)];
}

uint32_t MixedPrecisionEntries::take_waiting_page() {
  if (waiting_free_.empty()) waiting_free_.push_back(pages_gpu_ + waiting_made_++);
  const uint32_t page = waiting_free_.back();
  waiting_free_.pop_back();
  return page;
}

PageId MixedPrecisionEntries::take(Allocations* allocations) {
  KVT_CHECK(allocations->next < allocations->pages.size());
  const PageId page = allocations->pages[allocations->next++];
  KVT_CHECK(raw(page) < pages_gpu_);
  allocations->taken->push_back(page);
  pages_[raw(page)].clear();
  return page;
}

void MixedPrecisionEntries::put_4(uint32_t position, Allocations* allocations, Request* request,
                                  Action action, RequestPart* request_part) {
  if (request->in_tail == 0) {
    request->tail = take(allocations);
    KVT_CHECK(!is_int2(raw(request->tail)));
  }
  action.page = request->tail;
  action.slot = request->in_tail;
  action.position = position;
  request_part->actions.push_back(action);
  request->places[position] = {raw(request->tail), request->in_tail};
  pages_[raw(request->tail)].push_back(position);
  request->in_tail = (request->in_tail + 1) % page_tokens_;
}

// A whole group goes to the int2 page that was allocated for it. Without such a page, and at the end of the
// prompt, waiting KV entries go to int4.
void MixedPrecisionEntries::place_waiting(Allocations* allocations, Request* request,
                                          RequestPart* request_part) {
  const bool packs = request->waiting.size() == page_tokens_ &&
                     allocations->next < allocations->pages.size() &&
                     is_int2(raw(allocations->pages[allocations->next]));
  if (packs) {
    const PageId page = take(allocations);
    request_part->actions.push_back(
        {Action::Kind::kPack, 0, page, 0, static_cast<uint32_t>(request_part->packed.size())});
    request_part->packed.insert(request_part->packed.end(), request->waiting.begin(), request->waiting.end());
    for (uint32_t slot = 0; slot < page_tokens_; ++slot) {
      request->places[request->waiting[slot]] = {raw(page), slot};
      pages_[raw(page)].push_back(request->waiting[slot]);
    }
  } else {
    for (uint32_t slot = 0; slot < request->waiting.size(); ++slot)
      put_4(request->waiting[slot], allocations, request, {Action::Kind::kMove, slot}, request_part);
  }
  request->waiting.clear();
}

void MixedPrecisionEntries::place_rows(const LaunchStep& launch, uint32_t index, const PlanEntry& entry,
                                       Allocations* allocations, Request* request,
                                       RequestPart* request_part) {
  uint32_t position = entry.context, row = request_part->row;
  request->places.resize(position + entry.tokens);
  if (!request_part->chunk)
    return put_4(position, allocations, request, {Action::Kind::kPut, row}, request_part);
  for (const FormatRun& run : launch.formats) {
    if (run.entry != index) continue;
    if (run.count == 0) place_waiting(allocations, request, request_part);
    for (uint32_t i = 0; i < run.count; ++i, ++position, ++row) {
      if (run.four) {
        put_4(position, allocations, request, {Action::Kind::kPut, row}, request_part);
        continue;
      }
      const auto slot = static_cast<uint32_t>(request->waiting.size());
      request->waiting.push_back(position);
      request->places[position] = {request->waiting_page, slot};
      request_part->actions.push_back({Action::Kind::kStage, row, {}, slot, position});
      if (request->waiting.size() == page_tokens_) place_waiting(allocations, request, request_part);
    }
  }
  KVT_CHECK(position == entry.context + entry.tokens);
}

void MixedPrecisionEntries::notify(const Command& command) {
  if (const auto* copy = std::get_if<StartTransfer>(&command)) {
    for (size_t i = 0; i < copy->source.size(); ++i) {
      const std::vector<uint32_t> slots = slots_of(copy->source[i]);
      slots_of(copy->target[i]) = slots;
    }
    return;
  }
  // A preempted request may still be part of a launched step; when it is readmitted, it starts again.
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop == nullptr || drop->reason == DropRequestState::Reason::kPreempted) return;
  const auto request = requests_.find(drop->request);
  if (request == requests_.end()) return;
  waiting_free_.push_back(request->second.waiting_page);
  requests_.erase(request);
}

}  // namespace kvtwin::cpu
