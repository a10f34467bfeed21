#include "engine/cuda/device/operation_timer.h"

#include <cmath>

#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

OperationTimer::~OperationTimer() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

void OperationTimer::mark(const StateValue& mark) {
  const auto shape = [&] { return std::string(name_of(mark.operation)); };
  if (marks_.size() == events_.size()) {
    cudaEvent_t event = nullptr;
    must(cudaEventCreate(&event), "cudaEventCreate", 0, shape);
    events_.push_back(event);
  }
  must(cudaEventRecord(events_[marks_.size()], stream_), "cudaEventRecord", 0, shape);
  marks_.push_back(mark);
}

std::vector<OperationTime> OperationTimer::times(Duration start) {
  std::vector<OperationTime> out;
  Duration at = start;
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    float ms = 0;
    must(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]), "cudaEventElapsedTime", 0,
         [&] { return std::string(name_of(marks_[i].operation)); });
    const Duration took{std::llround(double{ms} * 1e6)};
    if (!marks_[i].idle) out.push_back({marks_[i].operation, marks_[i].layer, at, at + took});
    at = at + took;
  }
  marks_.clear();
  return out;
}

}  // namespace kvtwin::cuda
