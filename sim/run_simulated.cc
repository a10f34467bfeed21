#include "engine/base/check.h"
#include "sim/behaviour/stored_outcome_backend.h"
#include "sim/sim_backend.h"

namespace kvtwin::sim {

RunEnd run_simulated(const SimConfig& config, const RunOptions& options, Client* client,
                     const std::vector<Observer*>& observers, SimReport* report) {
  KVT_CHECK(config.engines.size() == options.engines.size());
  SimConfig own = config;
  own.prefill_engines = options.prefill_engines;
  for (size_t i = 0; i < own.engines.size(); ++i) {
    own.engines[i].steps_in_flight_max = options.engines[i].steps_in_flight_max;
  }
  RunEnd end;
  std::vector<OutcomeSource*> sources;
  for (const SimEngine& engine : own.engines) sources.push_back(engine.retention);
  const SimReport seen = simulate(own, [&](Backend* backend) {
    StoredOutcomeBackend answering(backend, sources);
    end = run(options, client, &answering, observers);
  });
  if (report != nullptr) *report = seen;
  return end;
}

}  // namespace kvtwin::sim
