#include "tests/support/resident_checker.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::testing {

void ResidentChecker::settle() {
  for (size_t i = 0; i < last_.entries.size(); ++i) {
    const PlanEntry& entry = last_.entries[i];
    std::vector<PageId>& pages = pages_[entry.request];
    std::vector<PageId> later;  // of the coalesced steps after the first, which may complete the prompt
    pages.clear();
    for (const Use& use : last_.uses) {
      if (use.request == entry.request) (use.from == 0 ? pages : later).push_back(use.page);
    }
    resize_to_resident(i, &pages);
    pages.insert(pages.end(), later.begin(), later.end());
  }
}

// Entry `index` of the last launch has computed its first step on `pages`: those that stay.
void ResidentChecker::resize_to_resident(size_t index, std::vector<PageId>* pages) {
  const PlanEntry& entry = last_.entries[index];
  const bool ends_prompt = entry.samples || entry.kind == EntryKind::kProbe;
  if (!ends_prompt || entry.passes_left > 0 || in_resident_[entry.request]) return;
  in_resident_[entry.request] = true;
  KVT_CHECK(pages->size() == div_ceil(entry.context + entry.stored(), config_.page_tokens));
  const uint32_t span = div_ceil(last_.left[index], config_.page_tokens);
  pages->resize(gpu_pages_held(config_.policies.retrieval_spec, config_.page_tokens, span));
}

void ResidentChecker::launched(const LaunchStep& step) {
  settle();
  Launch launch;
  launch.entries.assign(step.entries.begin(), step.entries.end());
  for (const PlanEntry& entry : step.entries) launch.left.push_back(entry.live() + entry.stored());
  for (const Compression& compression : step.compressions) {
    uint32_t& left = launch.left[compression.entry];
    left = compression.keep.front();
    for (const Compression::Forced& forced : compression.forced) left += forced.end - forced.begin;
  }
  for (const PlanEntry& entry : step.entries) {
    std::vector<PageId>& pages = pages_[entry.request];
    if (entry.first) {
      pages.clear();
      in_resident_[entry.request] = false;
    }
    for (const PrefixHit& prefix_hit : step.prefix_hits) {
      if (prefix_hit.request != entry.request) continue;
      const auto on_gpu = prefix_hit.pages.subspan(prefix_hit.pages.size() / 2);
      pages.assign(on_gpu.begin(), on_gpu.end());
    }
    for (const PageId page : pages) launch.uses.push_back({entry.request, page, 0});
  }
  for (const PageAllocation& allocate : step.allocations) {
    if (raw(allocate.page) >= config_.pages_gpu) continue;
    launch.uses.push_back({step.entries[allocate.entry].request, allocate.page, allocate.offset});
  }
  last_ = launch;
  launches_.push_back(std::move(launch));
}

void ResidentChecker::cut(uint32_t steps) {
  const auto never = [steps](const Use& use) { return use.from >= steps; };
  std::erase_if(last_.uses, never);
  std::erase_if(launches_.back().uses, never);
}

void ResidentChecker::transfer_started(const StartTransfer& start) const {
  for (const PageId target : start.target) {
    for (const Launch& launch : launches_) {
      for (const Use& use : launch.uses) KVT_CHECK(use.page != target);
    }
  }
}

}  // namespace kvtwin::testing
