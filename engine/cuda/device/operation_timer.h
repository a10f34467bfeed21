// Times the operations of a step with events on its stream. Switched off it does nothing at all: an event
// costs the host 0.8 us.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_OPERATION_TIMER_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_OPERATION_TIMER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "engine/cuda/device/operation_log.h"

namespace kvtwin::cuda {

class OperationTimer {
 public:
  OperationTimer(bool on, cudaStream_t stream) : on_(on), stream_(stream) {}
  OperationTimer(const OperationTimer&) = delete;
  ~OperationTimer();

  bool on() const { return on_; }
  // What is started from now on is this operation's, until the next begin() or end().
  void begin(Operation operation, uint32_t layer = 0) {
    if (on_) mark({operation, layer});
  }
  void end() {
    if (on_) mark({Operation::kSample, 0, true});
  }
  // Times of what was begun since the last request; the first began at `start`, and what lies between an
  // end() and the next begin() belongs to no operation. REQUIRES: all of it has ended.
  std::vector<OperationTime> times(Duration start);

 private:
  struct StateValue {
    Operation operation{};
    uint32_t layer = 0;
    bool idle = false;
  };
  void mark(const StateValue& mark);

  const bool on_;
  const cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  std::vector<StateValue> marks_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_OPERATION_TIMER_H_
