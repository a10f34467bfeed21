// OperationTimer notes the operations of a step as they are started: it times those of the step's stream with
// events, or lists all of them with what their streams wait for. Switched off it does nothing at all: an
// event costs the host 0.8 us.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_OPERATION_TIMER_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_OPERATION_TIMER_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <vector>

#include "engine/cuda/device/operation_log.h"
#include "engine/steps/step_list.h"

namespace kvtwin::cuda {

class OperationTimer {
 public:
  // `timed`: operations of `stream` are timed. `issued`: receives all operations; null: they are not listed.
  OperationTimer(bool timed, StepList* issued, cudaStream_t stream)
      : timed_(timed), issued_(issued), on_(timed || issued != nullptr), stream_(stream) {}
  OperationTimer(const OperationTimer&) = delete;
  ~OperationTimer();

  // What is started from now on belongs to this operation, until the next begin() or end().
  void begin(const ListedOperation& operation) {
    if (on_) note(operation);
  }
  void begin(Operation operation, uint32_t layer = kNoLayer) {
    begin({.kind = operation, .layer = static_cast<uint16_t>(layer)});
  }
  void end() {
    if (timed_) mark({{}, true});
  }
  // The next operation of `stream` waits for `event`; `event` is recorded behind the last one.
  void waits(StreamKind stream, const StepEvent& event) {
    if (issued_ != nullptr) waiting_[static_cast<size_t>(stream)] = event;
  }
  void records(StreamKind stream, const StepEvent& event);
  // Times of what was begun since the last request; the first began at `start`, and what lies between an
  // end() and the next begin() belongs to no operation. REQUIRES: all of it has ended.
  std::vector<OperationTime> times(Duration start);

 private:
  struct Mark {
    ListedOperation operation{};
    bool idle = false;
  };
  void note(ListedOperation operation);
  void mark(const Mark& mark);

  const bool timed_;
  StepList* const issued_;
  const bool on_;
  const cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  std::vector<Mark> marks_;
  std::array<StepEvent, kStreamKinds> waiting_{};
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_OPERATION_TIMER_H_
