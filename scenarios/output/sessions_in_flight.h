// How many sessions a run kept in flight, compared with replay.population.

#ifndef KVTWIN_SCENARIOS_OUTPUT_SESSIONS_IN_FLIGHT_H_
#define KVTWIN_SCENARIOS_OUTPUT_SESSIONS_IN_FLIGHT_H_

#include <string>

#include "traces/proto/run.pb.h"

namespace kvtwin {

// Below this fraction of the population, a run's prices and throughput are of another load.
inline constexpr double kInFlightEnough = 0.8;

// The mean over the run's time: a session is in flight from its first ready request to its last finished one.
double sessions_in_flight(const v1::RunResult& result);

// "on average 62 of 200 sessions were in flight, ...". "": `mean` is near the population. `sessions` are
// those of all replicas (replay.replicas).
std::string in_flight_note(double mean, double population, double sessions, double replicas);
// The same for a run; "" also if replay.arrivals is not fixed_population.
std::string in_flight_note(const v1::RunResult& result);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_SESSIONS_IN_FLIGHT_H_
