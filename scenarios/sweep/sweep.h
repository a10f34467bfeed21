// A sweep runs one scenario at many points of its fields, each in a process of its own, and stores each
// result under the fingerprint of its inputs (inputs.h). The folder is its only state: a killed sweep
// continues where it stopped, a repeated one finds all points finished, an extended one runs the new points
// only, and a changed default, trace or version makes new points.
//
//   DIR/points/KEY/run.binpb ...   a finished run, as `kvtwin run --out` writes it
//   DIR/points/KEY.err             the error output of a failed run
//   DIR/index.sqlite               the table of all points, for SQL; derived from the above (index.h)
//   DIR/sweep.textproto            the arguments of the sweep (folder.h)

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
  std::string key;    // 16 hex digits; empty: the scenario is invalid at this point
  PointState state = PointState::kMissing;
  std::string error;  // of a failed point, in one line

  // Name and value of each metric of a finished point; numbers and texts in JSON syntax.
  std::vector<std::pair<std::string, std::string>> metrics;
};

// Checks that every field that the sweep sets or varies is read at one point at least (unread_fields.h). An
// axis that no point reads would give equal rows.
Result<void> check_fields_read(const SweepSpec& spec, const std::vector<SweepPoint>& points);

// All points in order, each with its key and its state in DIR. Points at which the scenario is invalid are
// failed rows, not errors. Calls `warn` for results that cannot be read; they count as missing.
using Warn = std::function<void(const std::string&)>;
Result<std::vector<SweepRow>> plan_sweep(const SweepSpec& spec, const std::string& dir, const Warn& warn);
// The same for given points.
Result<std::vector<SweepRow>> plan_points(const SweepSpec& spec, const std::vector<SweepPoint>& points,
                                          const std::string& dir, const Warn& warn);
// Updates the row from its directory. A result that cannot be read counts as missing; the reason goes to
// *complaint.
void look_up(const std::string& dir, SweepRow* row, std::string* complaint);

struct SweepRun {
  Shard shard;
  uint32_t at_once = 1;
  std::string program;  // kvtwin
};

// Runs the points that are missing or failed, once per key. Calls `ended` after each point that ran, with all
// rows of its key up to date. Errors (exit status 3): another process runs a sweep in this folder, or the
// environment failed (disk full); nothing more is started then.
Result<void> run_sweep(const SweepSpec& spec, const std::string& dir, const SweepRun& how,
                       std::vector<SweepRow>* rows, const std::function<void(const SweepRow&)>& ended);

// csv: one line per point with axes, state, all metrics and the error. jsonl: the same as objects; json: as a
// list of objects. table: axes, state and `columns`.
std::string format_sweep(const SweepSpec& spec, const std::vector<SweepRow>& rows, OutputFormat format,
                         const std::vector<std::string>& columns);
// The axes with several values along which no run differs.
std::vector<std::string> axes_without_effect(const SweepSpec& spec, const std::vector<SweepRow>& rows);
// The `columns` that no row has; empty: all are known.
std::vector<std::string> unknown_columns(const std::vector<SweepRow>& rows,
                                         const std::vector<std::string>& columns);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_SWEEP_H_
