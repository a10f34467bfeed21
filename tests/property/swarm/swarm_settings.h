// The drawn setting of a seed: engines, clients, backend.

#ifndef KVTWIN_TESTS_PROPERTY_SWARM_SWARM_SETTINGS_H_
#define KVTWIN_TESTS_PROPERTY_SWARM_SWARM_SETTINGS_H_

#include <cstdint>

#include "engine/runtime/driver.h"
#include "tests/support/script_backend.h"
#include "tests/support/script_client.h"

namespace kvtwin::testing {

struct Setting {
  RunOptions run;
  ScriptClientOptions client;
  ScriptBackendOptions backend;
};

// The seed determines the family (swarm.h).
Setting draw_setting(uint64_t seed);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_PROPERTY_SWARM_SWARM_SETTINGS_H_
