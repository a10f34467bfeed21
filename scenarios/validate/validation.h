// validate(): compares the simulation of a scenario with real runs of it
// (docs/design/backend-interface-and-digest.md#validation).
//
//   same decisions   the policy, replayed on a real run's log, takes the recorded decisions (yes or no)
//   open loop        each recorded step and copy is priced: the error of the cost model alone
//   closed loop      the scenario, simulated from scratch, is compared with the real runs: the error that
//                    users see. The spread of the real repeats bounds the accuracy of each figure.
//
// Recordings: recordings.h. Figures and tolerances, with the source of each: closed_loop.cc.

#ifndef KVTWIN_SCENARIOS_VALIDATE_VALIDATION_H_
#define KVTWIN_SCENARIOS_VALIDATE_VALIDATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "scenarios/validate/open_loop.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

// Statistics of signed relative errors, in percent. All 0 if count is 0.
struct ErrorStatistics {
  uint64_t count = 0;
  double median = 0, p95 = 0;  // of absolute errors, nearest-rank
  double mean = 0;             // signed
};
ErrorStatistics statistics_of(std::vector<double> errors);

enum class Verdict : uint8_t {
  kWithin,  // within the tolerance
  kSpread,  // beyond the tolerance, but between the real repeats
  kKnown,   // beyond the tolerance, and listed as a known deviation
  kOutside,
};
const char* name_of(Verdict verdict);

struct ComparedFigure {
  std::string name, unit;
  double simulated = 0;
  double real = 0, real_min = 0, real_max = 0;  // mean and range of the repeats
  bool absolute = false;                        // difference and tolerance are in the figure's own unit
  double difference = 0, tolerance = 0;         // in percent of `real` unless `absolute`
  Verdict verdict = Verdict::kWithin;
  std::string known;  // the reason, for a known deviation
};

struct ReplayedRun {
  std::string repeat;
  bool same = false;
  uint64_t steps = 0, decisions = 0;
  std::string difference;  // the first difference
};

struct ScenarioValidation {
  std::string name;
  std::vector<ReplayedRun> replayed;
  ErrorStatistics steps, decode_steps, chunk_steps, copies;
  double total = 0;         // error of the summed time of all steps, signed, in percent
  double in_range = 0;      // percent of steps within the model's range
  double half_width = 0;    // of the range, in percent of the predicted time: the median
  double extrapolated = 0;  // percent of steps that lie partly outside the tables
  std::vector<ComparedFigure> figures;
  double simulated_ms = 0;      // until the last step ended
  std::vector<double> real_ms;  // the same for each repeat
  // The first decision in which the simulated run differs from a real one, with both sides' state
  // (divergence.h);
  // "": none. Times differ between the runs, so a difference need not be an error.
  std::string parts_at{};
  bool good() const;
};

struct KnownDeviation {
  std::string scenario, figure, because, until;  // `scenario` "*": all
};

struct Validation {
  std::string profile;  // its file, without folder and extension
  std::vector<ScenarioValidation> scenarios;
  std::vector<Error> failed{};    // scenarios that cannot be read or run: the others count without them
  ErrorStatistics steps, copies;  // over all scenarios
  double in_range = 0, half_width = 0;
  std::string details{};  // every priced step and copy, as CSV, to analyse errors
  bool good() const;
};

// A recorded real run.
struct Recording {
  std::string repeat;
  Log log;
  v1::RunResult result;
  std::optional<RecordedOutcomes> outcomes{};  // where steps recall pages
  uint64_t pages_evicted = 0;                  // from the prefix index, to free pages; known after a replay
};

// `simulated` is the result of the same scenario; its log is not read.
std::vector<ComparedFigure> compare_closed_loop(const Recording& simulated,
                                                const std::vector<Recording>& real);
// Adds the exposed transfer time where steps recall pages themselves, which no engine measures directly:
// scenario NAME_miss_N takes that much longer than NAME_miss_0, whose steps are the same with nothing absent.
void add_exposed_transfers(std::vector<ScenarioValidation>* scenarios);
// Marks known deviations, and adds the figures of the open loop with their tolerances.
void judge(const std::vector<KnownDeviation>& known, ScenarioValidation* one);

std::string validation_table(const Validation& validation);
std::string validation_json(const Validation& validation);
// Sentences about medians and differences that are worse than in `baseline` (a validation.json) by more than
// 10 % and 0.05 percentage points. `part`: the baseline may have more scenarios. Errors: an invalid file, or
// one whose figures are not validated.
Result<std::vector<std::string>> worse_than(const Validation& validation, const std::string& baseline,
                                            const std::string& where, bool part = false);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_VALIDATION_H_
