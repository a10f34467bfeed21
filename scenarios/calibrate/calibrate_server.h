// calibrate_server(): fits the six figures of a ServerProfile to the first requests of a real server's log,
// with the simulator in the loop, and scores the prediction of the other requests.
//
// The fit minimises the mean distance between simulated and measured instants of first and last tokens, in
// which the errors of single steps accumulate. A weak pull towards "nothing fitted" decides where the log
// does not. The search is deterministic (nelder_mead.h).

#ifndef KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_SERVER_H_
#define KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_SERVER_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "models/serving/server_profile.h"
#include "scenarios/load/scenario.h"
#include "scenarios/output/compare.h"

namespace kvtwin {

constexpr size_t kServerFigures = 6;

// How much one figure matters: the distance of the calibration part after a change of it.
struct FigureWeight {
  const char* name = "";
  std::string value, change;
  double distance_percent = 0;
};

// Errors of single requests, in percent of the measured value.
struct RequestErrors {
  double median = 0, p90 = 0;
};

struct ServerScore {
  Comparison comparison;                                      // of the part that is not fitted to
  std::array<RequestErrors, kComparedMetrics.size()> errors;  // by metric
};

struct ServerCalibration {
  ServerProfile profile;
  size_t fitted_to = 0;                             // requests
  size_t runs = 0;                                  // simulated
  double distance_percent = 0, before_percent = 0;  // of the mean latency: fitted, and nothing fitted
  std::array<FigureWeight, kServerFigures> figures;
  ServerScore fitted, nothing;
  ServerProfile::Range rest;  // the loads of the scored part; `requests` is its size
  uint32_t requests_max = 0;  // that the scenario lets run at once

  // On the scored part, an error of single requests is larger than without fitted figures.
  bool worse_than_nothing() const;
};

struct ServerCalibrationInput {
  Scenario scenario;         // how the server was run; its cost is the base model
  std::vector<Request> log;  // in order of arrival
  std::string log_name;
  size_t first = 30;  // requests to fit to
};

// Error: the simulated run has other requests than the log, or fewer than `first` and one more.
Result<ServerCalibration> calibrate_server(ServerCalibrationInput input);

// What the calibration found, as text to print.
std::string server_calibration_text(const ServerCalibration& calibration);

// Runs the scenario, with these times if they are not null, and returns its requests in order of arrival.
tl::expected<std::vector<Request>, Errors> simulated_requests(const Scenario& scenario,
                                                              const ServerTimes* times);

// A Mooncake trace of the log: arrivals and lengths, without shared prefixes.
std::string trace_of_log(const std::vector<Request>& log);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_SERVER_H_
