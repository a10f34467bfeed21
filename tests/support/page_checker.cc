#include "tests/support/page_checker.h"

#include "engine/base/check.h"

namespace kvtwin::testing {

void PageChecker::adopted(const Adoption& adoption) {
  std::vector<PageId>& table = tables_[adoption.call];
  KVT_CHECK(table.empty());
  table.assign(adoption.pages.begin(), adoption.pages.end());
}

void PageChecker::wrote(const PlanEntry& entry) {
  const std::vector<PageId>& table = tables_[entry.call];
  for (uint32_t position = entry.context; position < entry.context + entry.tokens; ++position) {
    KVT_CHECK(position / page_tokens_ < table.size());
    Content& page = pages_[table[position / page_tokens_]];
    const uint32_t slot = position % page_tokens_;
    // Slot by slot; what a former owner left behind it is gone.
    KVT_CHECK(slot <= page.size());
    page.resize(slot);
    page.push_back(tokens_->token(entry.call, position));
  }
}

void PageChecker::reads(const PlanEntry& entry) const {
  const std::vector<PageId>& table = tables_.at(entry.call);
  for (uint32_t position = 0; position < entry.context + entry.tokens; ++position) {
    KVT_CHECK(position / page_tokens_ < table.size());
    const auto page = pages_.find(table[position / page_tokens_]);
    KVT_CHECK(page != pages_.end());
    KVT_CHECK(position % page_tokens_ < page->second.size());
    KVT_CHECK(page->second[position % page_tokens_] == tokens_->token(entry.call, position));
  }
}

void PageChecker::transfer_started(TransferId transfer, std::span<const PageId> source,
                                   std::span<const PageId> target) {
  KVT_CHECK(!copies_.contains(transfer));
  KVT_CHECK(!source.empty());
  KVT_CHECK(source.size() == target.size());
  Copy& copy = copies_[transfer];
  copy.source.assign(source.begin(), source.end());
  copy.target.assign(target.begin(), target.end());
  for (const PageId page : source) {
    KVT_CHECK(pages_[page].size() == page_tokens_);  // only whole pages travel
    copy.at_start.push_back(pages_[page]);
  }
}

void PageChecker::transfer_ended(TransferId transfer, bool arrived) {
  const auto entry = copies_.find(transfer);
  KVT_CHECK(entry != copies_.end());
  const Copy& copy = entry->second;
  for (size_t i = 0; i < copy.source.size(); ++i) {
    KVT_CHECK(pages_[copy.source[i]] == copy.at_start[i]);  // nobody wrote to it meanwhile
    pages_[copy.target[i]] = arrived ? copy.at_start[i] : Content{};
  }
  copies_.erase(entry);
}

}  // namespace kvtwin::testing
