#include "tests/support/cell_checker.h"

#include "engine/base/check.h"

namespace kvtwin::testing {

class CellChecker::Grants {
 public:
  explicit Grants(std::span<const PageId> pages) : pages_(pages) {}
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

void CellChecker::begins(const PlanEntry& entry, std::span<const PageId> pages) {
  Call& call = calls_[entry.call];
  call = {};
  uint32_t frame = 0;
  for (const PageId page : pages) {
    if (page == kNoPage) {
      ++frame;
      continue;
    }
    const std::vector<Cell>& cells = pages_.at(page);
    for (uint32_t slot = 0; slot < cells.size(); ++slot) {
      const uint32_t position = cells[slot].position;
      if (position / config_.page_tokens != frame) continue;  // perhaps of others
      KVT_CHECK(cells[slot].token == tokens_->token(entry.call, position));
      const bool fresh = call.places.emplace(position, Place{page, slot}).second;
      KVT_CHECK(fresh);
      call.narrow += is_int4(page) ? 0 : 1;
    }
  }
  KVT_CHECK(frame * config_.page_tokens == entry.context);
  KVT_CHECK(call.places.size() == entry.context);
}

void CellChecker::ages(std::span<const CellAgeing> ageings) {
  std::map<PageId, std::vector<Cell>> made;
  for (const CellAgeing& ageing : ageings) {
    KVT_CHECK(is_int4(ageing.source) && !is_int4(ageing.target));
    std::vector<Cell>& target = made[ageing.target];
    if (target.size() == config_.page_tokens) target.clear();  // it went to somebody else in between
    for (uint32_t position = ageing.position; position < ageing.position + ageing.count; ++position) {
      uint32_t found = 0;
      for (Cell& cell : pages_.at(ageing.source)) {
        if (cell.position != position) continue;
        target.push_back(cell);
        cell.position = UINT32_MAX;
        ++found;
      }
      KVT_CHECK(found == 1);
    }
    KVT_CHECK(target.size() <= config_.page_tokens);
    if (target.size() == config_.page_tokens) pages_[ageing.target] = target;
  }
  for (const auto& [page, cells] : made) KVT_CHECK(cells.size() == config_.page_tokens);
}

void CellChecker::put(CallId id, PageId page, uint32_t position, Call* call) {
  std::vector<Cell>& cells = pages_[page];
  KVT_CHECK(cells.size() < config_.page_tokens);
  call->places[position] = {page, static_cast<uint32_t>(cells.size())};
  cells.push_back({position, tokens_->token(id, position)});
}

void CellChecker::put_4(CallId id, uint32_t position, Grants* grants, Call* call) {
  if (call->in_tail == 0) {
    call->tail = grants->take();
    KVT_CHECK(is_int4(call->tail));
    pages_[call->tail].clear();
  }
  put(id, call->tail, position, call);
  call->in_tail = (call->in_tail + 1) % config_.page_tokens;
}

// They go to int4, or, as a whole group, to the int2 page that was granted for it.
void CellChecker::put_waiting(CallId id, Grants* grants, Call* call) {
  const bool packs =
      call->waiting.size() == config_.page_tokens && !grants->empty() && !is_int4(grants->front());
  if (packs) {
    const PageId page = grants->take();
    pages_[page].clear();
    for (const uint32_t position : call->waiting) put(id, page, position, call);
    call->narrow += config_.page_tokens;
  } else {
    for (const uint32_t position : call->waiting) put_4(id, position, grants, call);
  }
  call->waiting.clear();
}

void CellChecker::writes(const PlanEntry& entry, std::span<const CellRun> bits,
                         std::span<const PageId> granted) {
  Call& call = calls_.at(entry.call);
  Grants grants(granted);
  KVT_CHECK(call.narrow == entry.narrow);
  uint32_t position = entry.context;
  if (entry.kind == EntryKind::kDecode) put_4(entry.call, position++, &grants, &call);
  for (const CellRun& run : bits) {
    KVT_CHECK(entry.kind == EntryKind::kChunk);
    if (run.count == 0) put_waiting(entry.call, &grants, &call);
    for (uint32_t i = 0; i < run.count; ++i, ++position) {
      if (run.four) {
        put_4(entry.call, position, &grants, &call);
        continue;
      }
      call.waiting.push_back(position);
      if (call.waiting.size() == config_.page_tokens) put_waiting(entry.call, &grants, &call);
    }
  }
  KVT_CHECK(position == entry.context + entry.tokens);
  KVT_CHECK(grants.empty());
  KVT_CHECK(entry.kind == EntryKind::kChunk || call.waiting.empty());
}

void CellChecker::reads(const PlanEntry& entry) const {
  const Call& call = calls_.at(entry.call);
  KVT_CHECK(call.places.size() + call.waiting.size() == entry.context + entry.tokens);
  for (const auto& [position, place] : call.places) {
    const std::vector<Cell>& cells = pages_.at(place.page);
    KVT_CHECK(place.slot < cells.size());
    KVT_CHECK(cells[place.slot].position == position);
    KVT_CHECK(cells[place.slot].token == tokens_->token(entry.call, position));
  }
}

}  // namespace kvtwin::testing
