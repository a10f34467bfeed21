// CachedPrefix is what one request shares with others: its identity, and the pin on the cached prefix that it
// reuses or added.
//
// The prefix is cut into places: pages, logical pages or chunks.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_CACHED_PREFIX_H_
#define KVTWIN_ENGINE_KV_MANAGERS_CACHED_PREFIX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/managers/kv_context.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

struct CachedPrefix {
  uint64_t name_space = 0;
  std::vector<UnitRun> identity;
  uint32_t places_public = 0;  // leading places that another request could ever match
  uint32_t places_known = 0;   // leading places with an identity
  Pin pin;
  bool insert_barred = false;  // the index has the same tokens from another request

  void open(const KvContext& context, const RequestReady& event, uint32_t place_tokens);
  // Places that the request may reuse: at least one token is computed, because the next one must be sampled.
  uint32_t reusable(const RequestProgress& progress, uint32_t place_tokens) const {
    return std::min((progress.known() - 1) / place_tokens, places_known);
  }
  // Moves the first pages of *own, up to place `limit`, to the index. dropped[i]: dropped KV entries of the
  // page at position i (may be shorter).
  void publish(uint32_t limit, std::span<const uint16_t> dropped, PrefixIndex* index,
               std::vector<PageId>* own);
};

// HeldKv counts the KV of an engine's running requests; shared pages count once per request.
struct HeldKv {
  uint64_t entries = 0;
  uint64_t pages = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_CACHED_PREFIX_H_
