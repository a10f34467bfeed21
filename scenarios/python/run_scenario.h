// One run of a scenario inside this process, as `kvtwin run` makes it: the same decisions, the same files.

#ifndef KVTWIN_SCENARIOS_PYTHON_RUN_SCENARIO_H_
#define KVTWIN_SCENARIOS_PYTHON_RUN_SCENARIO_H_

#include <optional>
#include <string>
#include <vector>

#include "scenarios/load/scenario.h"
#include "scenarios/output/result_folder.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

struct RunRequest {
  std::string scenario;             // a path or a shipped name; in messages only, if there is a text
  std::optional<std::string> text;  // the scenario itself
  std::vector<std::string> sets;    // "field.path=value"
  std::string timeline;             // "10..12.5" in seconds; "": none
  bool allow_unread = false;
  bool computes = false;  // refuse a scenario whose backend computes no values
};

struct FinishedRun {
  v1::RunResult result;
  std::vector<RunFile> files;  // of `kvtwin run --out`, run.binpb last
  double wall_s = 0;           // with reading the trace

  // "" if there is no such file.
  const std::string& file(std::string_view name) const;
};

// REQUIRES: no other run is in progress in this process (simulation_thread.h).
tl::expected<FinishedRun, Errors> run_in_process(const RunRequest& request);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PYTHON_RUN_SCENARIO_H_
