// Request is what the scheduler knows of one request; the tokens that it has are in RequestProgress, its KV
// is a KvManager's.
//
//   waiting -> (loading -> waiting)* -> running -> ended
//
// A preempted request is waiting again, or swapped out: its KV is being copied to the host.

#ifndef KVTWIN_ENGINE_SCHEDULER_REQUEST_H_
#define KVTWIN_ENGINE_SCHEDULER_REQUEST_H_

#include <cstdint>
#include <vector>

#include "engine/base/events.h"

namespace kvtwin {

struct Request {
  enum class Phase : uint8_t { kUnused, kWaiting, kLoading, kRunning, kSwappedOut };

  RequestId id{};
  RequestKey key{};
  Phase phase = Phase::kUnused;
  bool cancelled = false;
  bool hands_over = false;  // to another engine, once its first token exists
  bool first = false;       // its next entry is the first since it was admitted
  bool entered = false;     // admitted in the step that is being planned, with its entry
  uint32_t emitted = 0;     // output tokens that exist
  uint32_t launches = 0;    // launches in flight that include it
  size_t next_trigger = 0;
  std::vector<uint32_t> triggers;  // output token counts that the Client needs to know
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_REQUEST_H_
