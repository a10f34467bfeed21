// The setting of a run in few words: the model, the engines and their GPUs, the trace. The summary of a run
// and the header of a report page are made from it.

#ifndef KVTWIN_SCENARIOS_OUTPUT_RUN_SETTING_H_
#define KVTWIN_SCENARIOS_OUTPUT_RUN_SETTING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/proto/run.pb.h"

namespace kvtwin {

struct RunSetting {
  struct Engines {
    uint32_t count = 0, gpus = 0;  // engines, and GPUs of each (tensor parallelism)
    std::string node;
  };
  std::string model;
  std::vector<Engines> engines;  // of each kind, at least one
  std::string routing;           // "": one engine, or the default
  std::string trace;             // the file's name
};

// Absent for results of real servers, which have no scenario.
std::optional<RunSetting> run_setting(const v1::RunResult& result);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_RUN_SETTING_H_
