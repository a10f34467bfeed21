#include "engine/cuda/step_graphs.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cuda/cuda_check.h"

namespace kvtwin::cuda {

StepGraphs::~StepGraphs() {
  for (const Graph& one : graphs_) {
    if (one.graph != nullptr) cudaGraphExecDestroy(one.graph);
  }
}

void StepGraphs::run(const DeviceRows& rows, cudaStream_t stream, const std::function<void()>& start) {
  if (graphs_max_ == 0) return start();
  const auto shape = [&] {
    return fmt::format("{} rows, {} decode sequences, {} samples", rows.padded_rows, rows.decodes_count,
                       rows.samples);
  };
  const auto found =
      std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& one) { return one.rows == rows; });
  if (found == graphs_.end()) {
    // Replays that may still run are of a step before: the host has waited for its tokens.
    if (graphs_.size() == graphs_max_) {
      if (graphs_.back().graph != nullptr) cudaGraphExecDestroy(graphs_.back().graph);
      graphs_.pop_back();
    }
    graphs_.push_front({rows, nullptr});
    return start();
  }
  graphs_.splice(graphs_.begin(), graphs_, found);
  if (found->graph == nullptr) {
    // The device is busy with this step while the host captures and instantiates what the next one replays:
    // 3 ms, which a step that waited for its own graph would take longer.
    start();
    found->graph = capture(stream, start);
    return;
  }
  must(cudaGraphLaunch(found->graph, stream), "replay of a step's graph", 0, shape);
  ++replays_;
}

cudaGraphExec_t StepGraphs::capture(cudaStream_t stream, const std::function<void()>& start) {
  const auto no_shape = [] { return std::string(); };
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t out = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture of a step", 0, no_shape);
  start();
  must(cudaStreamEndCapture(stream, &graph), "capture of a step", 0, no_shape);
  must(cudaGraphInstantiate(&out, graph, 0), "graph of a step", 0, no_shape);
  cudaGraphDestroy(graph);
  return out;
}

}  // namespace kvtwin::cuda
