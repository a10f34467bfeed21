#include "tests/support/kv_entry_checker.h"

#include <utility>

#include "engine/base/check.h"

namespace kvtwin::testing {

class KvEntryChecker::Allocations {
 public:
  explicit Allocations(std::span<const PageId> pages) : pages_(pages) {}
  bool empty() const { return pages_.empty(); }
  PageId front() const { return pages_.front(); }
  PageId take() {
    KVT_CHECK(!pages_.empty());
    const PageId page = pages_.front();
    pages_ = pages_.subspan(1);
    return page;
  }

 private:
  std::span<const PageId> pages_;
};

void KvEntryChecker::begins(const PlanEntry& entry, std::span<const PageId> pages) {
  Request& request = requests_[entry.request];
  const Request before = std::exchange(request, {});
  uint32_t logical_page = 0;
  for (const PageId page : pages) {
    if (page == kNoPage) {
      ++logical_page;
      continue;
    }
    const std::vector<KvEntry>& kv_entries = pages_.at(page);
    for (uint32_t slot = 0; slot < kv_entries.size(); ++slot) {
      const uint32_t position = kv_entries[slot].position;
      if (position / config_.page_tokens != logical_page) continue;  // may belong to other requests
      KVT_CHECK(kv_entries[slot].token == tokens_->token(entry.request, position));
      const bool fresh = request.places.emplace(position, Place{page, slot}).second;
      KVT_CHECK(fresh);
      request.low_bit += is_int4(page) ? 0 : 1;
    }
  }
  KVT_CHECK(request.places.size() == entry.context);
  if (!entry.swapped_in) {
    KVT_CHECK(logical_page * config_.page_tokens == entry.context);
    return;
  }
  // It has what it had, in pages of the same formats, and fills its int4 page further.
  KVT_CHECK(logical_page == div_ceil(entry.context, config_.page_tokens));
  KVT_CHECK(request.low_bit == before.low_bit && before.waiting.empty());
  KVT_CHECK(before.places.size() == entry.context);
  request.in_tail = before.in_tail;
  for (const auto& [position, place] : before.places) {
    const Place& now = request.places.at(position);
    KVT_CHECK(now.slot == place.slot);
    if (before.in_tail > 0 && place.page == before.tail) request.tail = now.page;
  }
}

void KvEntryChecker::ages(std::span<const Requantisation> requantisations) {
  std::map<PageId, std::vector<KvEntry>> made;
  for (const Requantisation& ageing : requantisations) {
    KVT_CHECK(is_int4(ageing.source) && !is_int4(ageing.target));
    std::vector<KvEntry>& target = made[ageing.target];
    if (target.size() == config_.page_tokens) target.clear();  // reallocated in between
    for (uint32_t position = ageing.position; position < ageing.position + ageing.count; ++position) {
      uint32_t found = 0;
      for (KvEntry& kv_entry : pages_.at(ageing.source)) {
        if (kv_entry.position != position) continue;
        target.push_back(kv_entry);
        kv_entry.position = UINT32_MAX;
        ++found;
      }
      KVT_CHECK(found == 1);
    }
    KVT_CHECK(target.size() <= config_.page_tokens);
    if (target.size() == config_.page_tokens) pages_[ageing.target] = target;
  }
  for (const auto& [page, kv_entries] : made) KVT_CHECK(kv_entries.size() == config_.page_tokens);
}

void KvEntryChecker::put(RequestId id, PageId page, uint32_t position, Request* request) {
  std::vector<KvEntry>& kv_entries = pages_[page];
  KVT_CHECK(kv_entries.size() < config_.page_tokens);
  request->places[position] = {page, static_cast<uint32_t>(kv_entries.size())};
  kv_entries.push_back({position, tokens_->token(id, position)});
}

void KvEntryChecker::put_4(RequestId id, uint32_t position, Allocations* allocations, Request* request) {
  if (request->in_tail == 0) {
    request->tail = allocations->take();
    KVT_CHECK(is_int4(request->tail));
    pages_[request->tail].clear();
  }
  put(id, request->tail, position, request);
  request->in_tail = (request->in_tail + 1) % config_.page_tokens;
}

// The waiting KV entries are written to int4, or as one whole group to the int2 page allocated for it.
void KvEntryChecker::put_waiting(RequestId id, Allocations* allocations, Request* request) {
  const bool packs = request->waiting.size() == config_.page_tokens && !allocations->empty() &&
                     !is_int4(allocations->front());
  if (packs) {
    const PageId page = allocations->take();
    pages_[page].clear();
    for (const uint32_t position : request->waiting) put(id, page, position, request);
    request->low_bit += config_.page_tokens;
  } else {
    for (const uint32_t position : request->waiting) put_4(id, position, allocations, request);
  }
  request->waiting.clear();
}

void KvEntryChecker::writes(const PlanEntry& entry, std::span<const FormatRun> bits,
                            std::span<const PageId> allocated) {
  Request& request = requests_.at(entry.request);
  Allocations allocations(allocated);
  KVT_CHECK(request.low_bit == entry.low_bit);
  uint32_t position = entry.context;
  if (entry.kind == EntryKind::kDecode) put_4(entry.request, position++, &allocations, &request);
  for (const FormatRun& run : bits) {
    KVT_CHECK(entry.kind == EntryKind::kChunk);
    if (run.count == 0) put_waiting(entry.request, &allocations, &request);
    for (uint32_t i = 0; i < run.count; ++i, ++position) {
      if (run.four) {
        put_4(entry.request, position, &allocations, &request);
        continue;
      }
      request.waiting.push_back(position);
      if (request.waiting.size() == config_.page_tokens) put_waiting(entry.request, &allocations, &request);
    }
  }
  KVT_CHECK(position == entry.context + entry.tokens);
  KVT_CHECK(allocations.empty());
  KVT_CHECK(entry.kind == EntryKind::kChunk || request.waiting.empty());
}

void KvEntryChecker::reads(const PlanEntry& entry) const {
  const Request& request = requests_.at(entry.request);
  KVT_CHECK(request.places.size() + request.waiting.size() == entry.context + entry.tokens);
  for (const auto& [position, place] : request.places) {
    const std::vector<KvEntry>& kv_entries = pages_.at(place.page);
    KVT_CHECK(place.slot < kv_entries.size());
    KVT_CHECK(kv_entries[place.slot].position == position);
    KVT_CHECK(kv_entries[place.slot].token == tokens_->token(entry.request, position));
  }
}

}  // namespace kvtwin::testing
