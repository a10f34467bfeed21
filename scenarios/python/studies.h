// Sweeps and plans for the module: the commands' functions with their arguments as one struct.

#ifndef KVTWIN_SCENARIOS_PYTHON_STUDIES_H_
#define KVTWIN_SCENARIOS_PYTHON_STUDIES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "scenarios/plan/plan.h"
#include "scenarios/sweep/sweep.h"

namespace kvtwin {

struct SweepRequest {
  std::string scenario,
      out;  // a path or a name; "" as `out`: a folder below ./out that depends on the arguments
  std::vector<std::string> vary, sets;
  std::string sampler;  // "", sobol or random
  uint32_t samples = 0;
  uint64_t seed = 1;
  std::string shard = "0/1";
  uint32_t jobs = 0;    // processes; 0: one for each core
  std::string program;  // kvtwin, which runs one point in each of its processes
  bool force = false;
  std::vector<std::string> columns;  // of the text
};

// Texts are those of format_sweep() and format_plan().
struct StudyText {
  std::string json, table, out;
};

// Calls `ended` after each point that ran; an exception from it ends the sweep.
Result<StudyText> sweep_in_folder(const SweepRequest& request, const Warn& warn,
                                  const std::function<void()>& ended);

struct PlanRequest : PlanWords {
  uint32_t jobs = 0;
  std::string program;
};

Result<StudyText> plan_in_folder(const PlanRequest& request, const Warn& warn,
                                 const std::function<void()>& ended);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PYTHON_STUDIES_H_
