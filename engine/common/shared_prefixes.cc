#include "engine/common/shared_prefixes.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::cpu {

void SharedPrefixes::begin(const LaunchStep& launch, const PrefixHit& prefix_hit, RequestTable* table) {
  const bool swapped_in = std::any_of(
      launch.entries.begin(), launch.entries.end(),
      [&](const PlanEntry& entry) { return entry.request == prefix_hit.request && entry.swapped_in; });
  if (swapped_in) return table->swap_in(prefix_hit);
  prefix_hit.kv_entries.empty() ? reuse(prefix_hit, table) : continue_from(prefix_hit, table);
}

void SharedPrefixes::reuse(const PrefixHit& prefix_hit, RequestTable* table) const {
  std::vector<bool> dropped_tokens;
  for (const PageId page : prefix_hit.pages) {
    const auto of_page = dropped_.find(page);
    for (uint32_t slot = 0; slot < page_tokens_; ++slot)
      dropped_tokens.push_back(page == kNoPage || (of_page != dropped_.end() && of_page->second[slot]));
  }
  table->reuse(prefix_hit.pages, dropped_tokens);
}

void SharedPrefixes::continue_from(const PrefixHit& prefix_hit, RequestTable* table) {
  *table = prefix_checkpoints_.at(prefix_hit.prefix_checkpoint);
  std::span<const PageId> pages = prefix_hit.pages;
  for (uint32_t g = 0; g < shape_.groups.groups(); ++g) {
    KVT_CHECK(table->kv_entries(shape_.groups.members(g)[0]) == prefix_hit.kv_entries[g]);
    const uint32_t count = div_ceil(prefix_hit.kv_entries[g], page_tokens_), shared = prefix_hit.shared[g];
    table->retable(g, pages.first(shared));
    if (count > shared) {
      const std::span<const PageId> tail = pages.subspan(shared, count - shared);
      to_copy_[{prefix_hit.request, g}].assign(tail.rbegin(), tail.rend());
    }
    pages = pages.subspan(count);
  }
}

std::optional<PageId> SharedPrefixes::allocated(RequestId request, uint32_t group, PageId page) {
  dropped_.erase(page);
  const auto at = to_copy_.find({request, group});
  if (at == to_copy_.end() || at->second.empty()) return std::nullopt;
  const PageId source = at->second.back();
  at->second.pop_back();
  return source;
}

void SharedPrefixes::check_copied() {
  for (const auto& [of, pages] : to_copy_) KVT_CHECK(pages.empty());
  to_copy_.clear();
}

void SharedPrefixes::drop(Place place) {
  std::vector<bool>& slots = dropped_[PageId{place.page}];
  slots.resize(page_tokens_, false);
  slots[place.slot] = true;
}

void SharedPrefixes::copied(PageId source, PageId target) {
  const auto slots = dropped_.find(source);
  if (slots == dropped_.end()) {
    dropped_.erase(target);
  } else {
    dropped_.insert_or_assign(target, slots->second);
  }
}

}  // namespace kvtwin::cpu
