#include "engine/common/retrieval/resident_request.h"

#include "engine/base/check.h"

namespace kvtwin::cpu {

ResidentPrefix resident_prefix(const PrefixHit& prefix_hit, uint32_t pages_gpu) {
  const size_t count = prefix_hit.pages.size() / 2;
  const ResidentPrefix out{prefix_hit.pages.first(count), prefix_hit.pages.last(count)};
  KVT_CHECK(prefix_hit.pages.size() == 2 * count);
  for (const PageId host_copy : out.host_copies) KVT_CHECK(raw(host_copy) >= pages_gpu);
  for (const PageId page : out.pages) KVT_CHECK(raw(page) < pages_gpu);
  return out;
}

void ResidentRequest::begin_with(const ResidentPrefix& prefix, uint32_t pages_gpu, uint32_t page_tokens,
                                 bool resident_too) {
  for (const PageId host_copy : prefix.host_copies) {
    host_copies.push_back(raw(host_copy));
    if (resident_too) resident.push_back({raw(host_copy) - pages_gpu, 0, page_tokens});
  }
  for (const PageId page : prefix.pages) pages.push_back({raw(page), 0, page_tokens});
}

void ResidentRequest::add_factors(const PrefixRows& rows, uint32_t layer, uint32_t page_tokens) {
  for (; layer < layers.size(); ++layer) {
    const ResidentLayer& own = layers[layer];
    if (own.shadow == nullptr && own.partial == nullptr) continue;
    for (const uint32_t host_copy : host_copies) {
      for (uint32_t slot = 0; slot < page_tokens; ++slot) {
        const auto [query, key] = rows.get(layer, host_copy, slot);
        if (own.shadow != nullptr) own.shadow->add(key);
        if (own.partial != nullptr) own.partial->add(query, key);
      }
    }
  }
}

void ResidentRequest::factorise() {
  for (ResidentLayer& layer : layers) {
    if (layer.shadow != nullptr) layer.shadow->factorise();
  }
}

}  // namespace kvtwin::cpu
