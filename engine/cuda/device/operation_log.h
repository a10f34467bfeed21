// How long the operations of steps took on the device, kind by kind: what calibration and timelines read.
// No CUDA in here.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_OPERATION_LOG_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_OPERATION_LOG_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/steps/step_list.h"

namespace kvtwin::cuda {

// Times are from the step's start.
struct OperationTime {
  Operation operation{};
  uint32_t layer = 0;
  Duration from{}, to{};
};

struct StepOperations {
  StepId step{};
  uint32_t rows = 0, samples = 0;
  uint32_t decode_rows = 0;     // that attention_decode took
  uint64_t decode_entries = 0;  // read by their attention, all KV heads as one
  uint64_t chunk_entries = 0;   // the same, by all other rows
  Duration issued{};            // the host was done with starting operations
  Duration ended{};             // and with waiting for them
  std::vector<OperationTime> times;
};

class OperationLog {
 public:
  // `details`: take() is called for every step.
  explicit OperationLog(bool details) : details_(details) {}

  void add(EngineId engine, StepOperations step);
  // What was added of a step, once; empty: nothing was.
  std::vector<OperationTime> take(EngineId engine, StepId step);
  // One line per step and kind of operation, in order of steps.
  std::string csv() const;

 private:
  struct Row {
    EngineId engine{};
    StepOperations step;  // without times
    std::array<uint32_t, kOperations> count{};
    std::array<Duration, kOperations> total{};
  };

  const bool details_;
  std::vector<Row> rows_;
  std::map<std::pair<EngineId, StepId>, std::vector<OperationTime>> retained_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_OPERATION_LOG_H_
