// PagedRequest is the KV of one request whose pages are ordered by position.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_PAGED_REQUEST_H_
#define KVTWIN_ENGINE_KV_MANAGERS_PAGED_REQUEST_H_

#include <vector>

#include "engine/kv/managers/cached_prefix.h"
#include "engine/kv/managers/request_transfers.h"

namespace kvtwin {

struct PagedRequest : TransferState {
  // The pages that its next entry lists as filled. The list of a newly admitted request is written at once.
  enum class Starts : uint8_t { kNowhere, kSwappedIn, kArrived };

  RequestId id{};
  SessionId session{};
  CachedPrefix prefix;
  std::vector<PageId> pages;  // its own, after the prefix, by position; kNoPage: a dropped slot
  Starts starts = Starts::kNowhere;
  bool unlaunched = false;   // its first entry since admission is planned and not launched
  bool load_barred = false;  // a load failed: compute instead
  bool arrives = false;      // its KV is in the pages `source` of engine `from`, and must be fetched
  EngineId from{};
  std::vector<PageId> source;

  // Page positions that are covered.
  uint32_t span() const { return prefix.pin.pages + static_cast<uint32_t>(pages.size()); }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_PAGED_REQUEST_H_
