// A sweep runs one scenario at many points of its fields, each in a process of its own, and keeps each
// result under the fingerprint of its inputs (inputs.h). That is all its state: a sweep that was killed goes
// on where it was, a repeated one finds everything done, a longer one runs what is new, and a changed
// default, trace or version makes new points.
//
//   DIR/points/KEY/run.binpb ...   a finished run, as `kvtwin run --out` leaves it
//   DIR/points/KEY.err             what a run said that failed
//   DIR/index.sqlite               the table of it all, for SQL; made again from the above (index.h)
//   DIR/sweep.textproto            which sweep it is (folder.h)

#ifndef KVTWIN_SCENARIOS_SWEEP_SWEEP_H_
#define KVTWIN_SCENARIOS_SWEEP_SWEEP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "scenarios/output/summary.h"
#include "scenarios/sweep/axis.h"
#include "scenarios/sweep/points.h"

namespace kvtwin {

struct SweepSpec {
  std::string scenario;           // path
  std::vector<std::string> sets;  // of every point: "field.path=value"
  std::vector<Axis> axes;
  Sampling sampling;
};

enum class PointState : uint8_t { kMissing, kDone, kFailed };
const char* name_of(PointState state);

struct SweepRow {
  size_t point = 0;
  SweepPoint values;  // by axis
  std::string key;    // 16 hex digits; empty: the scenario is wrong at this point
  PointState state = PointState::kMissing;
  std::string error;  // of a failed one, in one line

  // Name and value, numbers and texts as JSON writes them; of done points.
  std::vector<std::pair<std::string, std::string>> metrics;
};

// Every field that the sweep sets or varies is read at one point at least (unread_fields.h): an axis that no
// point reads would give equal rows.
Result<void> check_fields_read(const SweepSpec& spec, const std::vector<SweepPoint>& points);

// All points in order, each with its key, and as far as DIR knows them. Points at which the scenario is wrong
// are failed rows, no errors. `warn` is told of results that cannot be read and count as missing.
using Warn = std::function<void(const std::string&)>;
Result<std::vector<SweepRow>> plan_sweep(const SweepSpec& spec, const std::string& dir, const Warn& warn);
// The same of these points.
Result<std::vector<SweepRow>> plan_points(const SweepSpec& spec, const std::vector<SweepPoint>& points,
                                          const std::string& dir, const Warn& warn);
// The row as the directory has it now. A directory that cannot be read is as good as missing; why it cannot
// goes to *complaint.
void look_up(const std::string& dir, SweepRow* row, std::string* complaint);

struct SweepRun {
  Shard shard;
  uint32_t at_once = 1;
  std::string program;  // kvtwin
};

// Runs what is missing or failed, once per key. `ended` is called after each point that ran, with all rows of
// its key up to date. Errors: another process sweeps here, or the environment failed (disk full), after
// which nothing more is started: exit status 3.
Result<void> run_sweep(const SweepSpec& spec, const std::string& dir, const SweepRun& how,
                       std::vector<SweepRow>* rows, const std::function<void(const SweepRow&)>& ended);

// csv: one line per point: axes, state, all metrics, error. jsonl: the same as objects, json: as a list of
// them. table: axes, state and `columns`.
std::string format_sweep(const SweepSpec& spec, const std::vector<SweepRow>& rows, OutputFormat format,
                         const std::vector<std::string>& columns);
// `columns` that no row has; empty: all are known.
std::vector<std::string> unknown_columns(const std::vector<SweepRow>& rows,
                                         const std::vector<std::string>& columns);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_SWEEP_H_
