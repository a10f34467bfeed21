#include "tests/support/arena_checker.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::testing {

void ArenaChecker::settle() {
  for (size_t i = 0; i < last_.entries.size(); ++i) {
    const PlanEntry& entry = last_.entries[i];
    std::vector<PageId>& pages = pages_[entry.call];
    pages.clear();
    for (const Use& use : last_.uses) {
      if (use.call == entry.call) pages.push_back(use.page);
    }
    if (!entry.samples || in_arena_[entry.call]) continue;
    in_arena_[entry.call] = true;
    KVT_CHECK(pages.size() == div_ceil(entry.context + entry.tokens, config_.page_tokens));
    const uint32_t span = div_ceil(last_.left[i], config_.page_tokens);
    pages.resize(gpu_pages_held(config_.policies.retrieval_spec, config_.page_tokens, span));
  }
}

void ArenaChecker::launched(const LaunchStep& step) {
  settle();
  Launch launch;
  launch.entries.assign(step.entries.begin(), step.entries.end());
  for (const PlanEntry& entry : step.entries) launch.left.push_back(entry.live() + entry.tokens);
  for (const Compression& compression : step.compressions) {
    uint32_t& left = launch.left[compression.entry];
    left = compression.keep.front();
    for (const Compression::Forced& forced : compression.forced) left += forced.end - forced.begin;
  }
  for (const PlanEntry& entry : step.entries) {
    std::vector<PageId>& pages = pages_[entry.call];
    if (entry.first) {
      pages.clear();
      in_arena_[entry.call] = false;
    }
    for (const Adoption& adoption : step.adoptions) {
      if (adoption.call != entry.call) continue;
      const auto on_gpu = adoption.pages.subspan(adoption.pages.size() / 2);
      pages.assign(on_gpu.begin(), on_gpu.end());
    }
    for (const PageId page : pages) launch.uses.push_back({entry.call, page, 0});
  }
  for (const PageGrant& grant : step.grants) {
    if (raw(grant.page) >= config_.pages_gpu) continue;
    launch.uses.push_back({step.entries[grant.entry].call, grant.page, grant.offset});
  }
  last_ = launch;
  launches_.push_back(std::move(launch));
}

void ArenaChecker::cut(uint32_t steps) {
  const auto never = [steps](const Use& use) { return use.from >= steps; };
  std::erase_if(last_.uses, never);
  std::erase_if(launches_.back().uses, never);
}

void ArenaChecker::transfer_started(const StartTransfer& start) const {
  for (const PageId target : start.target) {
    for (const Launch& launch : launches_) {
      for (const Use& use : launch.uses) KVT_CHECK(use.page != target);
    }
  }
}

}  // namespace kvtwin::testing
