#include "engine/cuda/device/operation_timer.h"

#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

OperationTimer::~OperationTimer() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

void OperationTimer::note(ListedOperation operation) {
  if (timed_ && operation.stream == StreamKind::kCompute) mark({operation, false});
  if (issued_ == nullptr) return;
  // Events as they are: those that the streams waited for and recorded, not those of the list.
  operation.after = std::exchange(waiting_[static_cast<size_t>(operation.stream)], {});
  operation.records = {};
  issued_->add(operation);
}

void OperationTimer::records(StreamKind stream, const StepEvent& event) {
  if (issued_ == nullptr) return;
  ListedOperation* const last = issued_->last_on(stream);
  KVT_CHECK(last != nullptr && !last->records);
  last->records = event;
}

void OperationTimer::mark(const Mark& mark) {
  const auto shape = [&] { return std::string(name_of(mark.operation.kind)); };
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
    const ListedOperation& operation = marks_[i].operation;
    float ms = 0;
    must(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]), "cudaEventElapsedTime", 0,
         [&] { return std::string(name_of(operation.kind)); });
    const Duration took{std::llround(double{ms} * 1e6)};
    const uint32_t layer = operation.layer == kNoLayer ? 0 : operation.layer;
    if (!marks_[i].idle) out.push_back({operation.kind, layer, at, at + took});
    at = at + took;
  }
  marks_.clear();
  return out;
}

}  // namespace kvtwin::cuda
