// KvUsage counts the KV memory of one engine exactly, for metrics and tests.

#ifndef KVTWIN_ENGINE_KV_KV_USAGE_H_
#define KVTWIN_ENGINE_KV_KV_USAGE_H_

#include <cstdint>

namespace kvtwin {

struct KvUsage {
  uint32_t pages_gpu_total = 0;
  uint32_t pages_gpu_free = 0;    // not owned
  uint32_t pages_gpu_cached = 0;  // held by the prefix index alone: evictable
  uint32_t pages_gpu_held = 0;    // in use by requests or transfers
  uint64_t pages_evicted = 0;     // evicted from the prefix index so far
  uint32_t pages_host_total = 0;
  uint32_t pages_host_free = 0;
  uint32_t pages_disk_total = 0;
  uint32_t pages_disk_free = 0;
  // Mixed precision; the other pages are int4.
  uint32_t pages_int2_total = 0;
  uint32_t pages_int2_held = 0;
  // KV entries that running requests can read, and slots in their pages; shared ones once per request. A KV
  // entry is one token in all heads of one group.
  uint64_t entries_held = 0;
  uint64_t slots_held = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_KV_USAGE_H_
