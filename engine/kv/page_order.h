// PageOrder selects the free page that a PagePool allocates next.

#ifndef KVTWIN_ENGINE_KV_PAGE_ORDER_H_
#define KVTWIN_ENGINE_KV_PAGE_ORDER_H_

#include <cstdint>

namespace kvtwin {

enum class PageOrder : uint8_t {
  kLowestFirst,  // the free page with the lowest number
  kOldestFirst,  // one queue of free and cached pages, in order of release (vLLM)
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_PAGE_ORDER_H_
