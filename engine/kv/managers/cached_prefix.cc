#include "engine/kv/managers/cached_prefix.h"

#include <algorithm>

namespace kvtwin {

void CachedPrefix::open(const KvContext& context, const RequestReady& event, uint32_t place_tokens) {
  identity.assign(event.identity.begin(), event.identity.end());
  uint64_t units = 0, units_public = 0;
  for (const UnitRun& run : identity) {
    if ((run.space & kPrivateSpace) == 0 && units_public == units) units_public += run.count;
    units += run.count;
  }
  const uint32_t place_units = place_tokens / context.config.unit_tokens;
  const std::optional<uint64_t> space = context.name_space(event.session);
  name_space = space.value_or(0);
  places_public = space.has_value() ? static_cast<uint32_t>(units_public / place_units) : 0;
  places_known = space.has_value() ? static_cast<uint32_t>(units / place_units) : 0;
  pin = {};
  insert_barred = false;
}

void CachedPrefix::publish(uint32_t limit, std::span<const uint16_t> dropped, PrefixIndex* index,
                           std::vector<PageId>* own) {
  if (insert_barred || limit <= pin.pages) return;
  const std::span<const PageId> pages(own->data(), limit - pin.pages);
  dropped = dropped.subspan(std::min<size_t>(dropped.size(), pin.pages));
  if (index->insert(name_space, identity, pages, &pin,
                    dropped.subspan(0, std::min(dropped.size(), pages.size())))) {
    own->erase(own->begin(), own->begin() + static_cast<ptrdiff_t>(pages.size()));
  } else {
    insert_barred = true;
  }
}

}  // namespace kvtwin
