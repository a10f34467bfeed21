// StepGraphs keeps CUDA graphs of steps: what starting some 300 operations costs the host (5 us each), a
// replay costs once.
//
// What a step starts is fixed by its DeviceRows: where its lists lie and how long they are. What stands in
// the lists is not part of it, so a graph serves all steps of one shape: those of a quiet stretch, in which
// calls decode and nobody comes or goes. A shape is captured when it comes up for the second time, while the
// device computes that step: the first time cuBLASLt chooses and kernels are loaded, and many shapes never
// come back. The least recently used graph makes room.

#ifndef KVTWIN_ENGINE_CUDA_STEP_GRAPHS_H_
#define KVTWIN_ENGINE_CUDA_STEP_GRAPHS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>

#include "engine/cuda/step_rows.h"

namespace kvtwin::cuda {

class StepGraphs {
 public:
  // At most so many graphs at a time; a graph of an 8B model's step takes about 300 nodes. 0: none, ever.
  explicit StepGraphs(uint32_t graphs_max) : graphs_max_(graphs_max) {}
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs();

  // Starts on `stream` what `start` starts there. REQUIRES: for equal `rows` that is always the same, on this
  // stream alone, and nothing of it waits for the host.
  void run(const DeviceRows& rows, cudaStream_t stream, const std::function<void()>& start);

  uint64_t replays() const { return replays_; }

 private:
  struct Graph {
    DeviceRows rows;
    cudaGraphExec_t graph = nullptr;  // null: seen once
  };
  static cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()>& start);

  const uint32_t graphs_max_;
  std::list<Graph> graphs_;  // the last used first
  uint64_t replays_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_STEP_GRAPHS_H_
