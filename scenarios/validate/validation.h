// validate(): how far a simulation of a scenario can be trusted, from real runs of it
// (docs/design/backend-interface-and-digest.md#validation).
//
//   same decisions   the policy, replayed on a real run's log, decides as it did then (yes or no)
//   open loop        each recorded step and copy, priced, beside what it took: the model's error alone
//   closed loop      the scenario simulated from scratch, beside the real runs: what users ask for. Each
//   figure
//                    stands beside the spread of the real repeats, which no prediction can beat
//
// Recordings: recordings.h. Figures and tolerances: closed_loop.cc, where each has its source.

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

// Of signed relative errors, in percent. All 0 if count is 0.
struct ErrorStatistics {
  uint64_t count = 0;
  double median = 0, p95 = 0;  // of their sizes, nearest-rank
  double mean = 0;             // signed
};
ErrorStatistics statistics_of(std::vector<double> errors);

enum class Verdict : uint8_t {
  kWithin,  // the tolerance
  kSpread,  // beyond it, but between the real repeats
  kKnown,   // beyond it, and listed among known deviations
  kOutside,
};
const char* name_of(Verdict verdict);

struct ComparedFigure {
  std::string name, unit;
  double simulated = 0;
  double real = 0, real_min = 0, real_max = 0;  // mean and range of the repeats
  bool absolute = false;                        // difference and tolerance are in the figure's own unit
  double difference = 0, tolerance = 0;         // else in percent of `real`
  Verdict verdict = Verdict::kWithin;
  std::string known;  // why, where it is known
};

struct ReplayedRun {
  std::string repeat;
  bool same = false;
  uint64_t steps = 0, decisions = 0;
  std::string difference;  // the first one
};

struct ScenarioValidation {
  std::string name;
  std::vector<ReplayedRun> replayed;
  ErrorStatistics steps, decode_steps, chunk_steps, copies;
  double total = 0;         // predicted time of all steps beside theirs, signed, in percent
  double in_range = 0;      // percent of steps within the model's interval
  double extrapolated = 0;  // percent of steps that lie outside the tables in part
  std::vector<ComparedFigure> figures;
  double simulated_ms = 0;      // until the last step ended
  std::vector<double> real_ms;  // likewise, by repeat
  // Where the simulated run first decides otherwise than a real one, and both sides' state (divergence.h);
  // "": nowhere. Instants differ, so it says where runs part, not that something is wrong.
  std::string parts_at{};
  bool good() const;
};

struct KnownDeviation {
  std::string scenario, figure, because, until;  // `scenario` "*": all
};

struct Validation {
  std::string profile;  // its file, without folder and extension
  std::vector<ScenarioValidation> scenarios;
  ErrorStatistics steps, copies;  // over all of them
  std::string details{};          // every priced step and copy, as CSV: for looking into errors
  bool good() const;
};

// A real run that was recorded.
struct Recording {
  std::string repeat;
  Log log;
  v1::RunResult result;
  std::optional<RecordedOutcomes> outcomes{};  // where steps recall pages
  uint64_t pages_evicted = 0;                  // from the prefix index, for room: known once it was replayed
};

// `simulated`: the same scenario's result. Its log is not read.
std::vector<ComparedFigure> compare_closed_loop(const Recording& simulated,
                                                const std::vector<Recording>& real);
// Where steps recall pages themselves no engine measures what it waited: a scenario NAME_miss_N takes so much
// longer than NAME_miss_0, the same steps with nothing absent. Adds that to each, simulated beside real.
void add_exposed_transfers(std::vector<ScenarioValidation>* scenarios);
// Marks what is known, and adds the figures of the open loop with their tolerances.
void judge(const std::vector<KnownDeviation>& known, ScenarioValidation* one);

std::string validation_table(const Validation& validation);
std::string validation_json(const Validation& validation);
// Medians and differences that are worse than in `baseline` (a validation.json) by more than a tenth and a
// twentieth of a percent; sentences. `part`: it may be of more scenarios. Error: it is no such file, or has
// figures that are not validated.
Result<std::vector<std::string>> worse_than(const Validation& validation, const std::string& baseline,
                                            const std::string& where, bool part = false);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_VALIDATION_H_
