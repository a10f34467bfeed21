// The Client sends requests. It owns sessions (DAGs of requests and tools), think times, token triggers and
// arrivals. It is deterministic and is driven by the same loop as the Core
// (docs/design/trace-formats.md#replay).
//
// traces/replay implements it for recorded and synthesised agent traces.

#ifndef KVTWIN_ENGINE_RUNTIME_CLIENT_H_
#define KVTWIN_ENGINE_RUNTIME_CLIENT_H_

#include <vector>

#include "engine/base/events.h"

namespace kvtwin {

// RequestReady, RequestCancelled and SessionHint, to be delivered at once, in this order.
using ClientEvents = std::vector<Event>;

class Client {
 public:
  virtual ~Client() = default;

  // When the Client next needs wake(), independent of other events. kNever: only after an answer.
  virtual Instant wake_at() const = 0;
  // Appends the events that are due at `now`. Called at wake_at() or later, and once at the start with
  // Instant{0}. Spans in *events stay valid until the next call of a member that takes `events`.
  virtual void wake(Instant now, ClientEvents* events) = 0;

  virtual void tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents* events) = 0;
  virtual void request_finished(Instant now, RequestId request, uint32_t tokens, bool cancelled,
                                ClientEvents* events) = 0;
  virtual void request_rejected(Instant now, RequestId request, ClientEvents* events) = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RUNTIME_CLIENT_H_
