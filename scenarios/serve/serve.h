// serve() runs an OpenAI-compatible server whose answers have the times of a scenario's simulation, in real
// time or faster.

#ifndef KVTWIN_SCENARIOS_SERVE_SERVE_H_
#define KVTWIN_SCENARIOS_SERVE_SERVE_H_

#include <string>

#include "scenarios/app/compose.h"
#include "scenarios/serve/http_server.h"
#include "scenarios/serve/kv_events.h"

namespace kvtwin::serve {

struct ServeOptions {
  ServerOptions server;   // model "": the scenario's
  double speed = 1;       // simulated seconds per second
  std::string kv_events;  // endpoint; "": none are published
  std::string kv_events_topic;
  KvEventLayout kv_events_layout = KvEventLayout::kMaps;
};

// What cannot be served as it is given: a host that is not this machine's, an endpoint of events that is
// none, or events that the policies do not have.
Result<void> check_serve(const Scenario& scenario, const Composed& composed, const ServeOptions& options);

// Prints where it serves, and returns after SIGTERM or SIGINT. REQUIRES: can_simulate(), and check_serve().
// Errors: an address that cannot be bound, or a token log that cannot be written.
Result<void> serve(const Scenario& scenario, Composed* composed, const ServeOptions& options);

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_SERVE_H_
