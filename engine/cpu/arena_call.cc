#include "engine/cpu/arena_call.h"

#include "engine/base/check.h"

namespace kvtwin::cpu {

ArenaPrefix arena_prefix(const Adoption& adoption, uint32_t pages_gpu) {
  const size_t count = adoption.pages.size() / 2;
  const ArenaPrefix out{adoption.pages.first(count), adoption.pages.last(count)};
  KVT_CHECK(adoption.pages.size() == 2 * count);
  for (const PageId home : out.homes) KVT_CHECK(raw(home) >= pages_gpu);
  for (const PageId page : out.pages) KVT_CHECK(raw(page) < pages_gpu);
  return out;
}

void ArenaCall::begin_with(const ArenaPrefix& prefix, uint32_t pages_gpu, uint32_t page_tokens,
                           bool resident_too) {
  for (const PageId home : prefix.homes) {
    homes.push_back(raw(home));
    if (resident_too) resident.push_back({raw(home) - pages_gpu, 0, page_tokens});
  }
  for (const PageId page : prefix.pages) pages.push_back({raw(page), 0, page_tokens});
}

void ArenaCall::add_factors(const PrefixRows& rows, uint32_t layer, uint32_t page_tokens) {
  for (; layer < layers.size(); ++layer) {
    const ArenaLayer& own = layers[layer];
    if (own.shadow == nullptr && own.partial == nullptr) continue;
    for (const uint32_t home : homes) {
      for (uint32_t slot = 0; slot < page_tokens; ++slot) {
        const auto [query, key] = rows.get(layer, home, slot);
        if (own.shadow != nullptr) own.shadow->add(key);
        if (own.partial != nullptr) own.partial->add(query, key);
      }
    }
  }
}

}  // namespace kvtwin::cpu
