#include "engine/cuda/step_graphs.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cuda/cuda_check.h"

namespace kvtwin::cuda {
namespace {}  // namespace

StepGraphs::~StepGraphs() {
  for (const Graph& one : graphs_) forget(one);
}

// The step's own replays have ended, because the host has waited for its tokens; what lanes do may go on.
void StepGraphs::forget(const Graph& one) {
  if (one.graphs.size() > 1) cudaDeviceSynchronize();
  for (const cudaGraphExec_t graph : one.graphs) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }
}

void StepGraphs::run(const StepForm& form, cudaStream_t stream, StepLanes* lanes,
                     const std::function<void()>& start) {
  if (graphs_max_ == 0) return start();
  const auto found =
      std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& one) { return one.form == form; });
  if (found == graphs_.end()) {
    if (graphs_.size() == graphs_max_) {
      forget(graphs_.back());
      graphs_.pop_back();
    }
    graphs_.push_front({form, {}});
    return start();
  }
  graphs_.splice(graphs_.begin(), graphs_, found);
  Streams streams{stream};
  if (lanes != nullptr) {
    for (const cudaStream_t lane : lanes->streams()) streams.push_back(lane);
  }
  if (found->graphs.empty()) {
    // The device is busy with this step while the host captures and instantiates what the next one replays:
    // 3 ms, which a step that waited for its own graph would take longer.
    start();
    found->graphs = capture(streams, lanes, start);
    return;
  }
  if (lanes != nullptr && lanes->watched()) {
    for (const cudaGraph_t graph : record(streams, lanes, StepLanes::Capture::kRehearsal, start))
      cudaGraphDestroy(graph);
  }
  // In this order: a lane waits for events that the graph before it records.
  for (size_t i = 0; i < streams.size(); ++i) {
    if (found->graphs[i] == nullptr) continue;
    must(cudaGraphLaunch(found->graphs[i], streams[i]), "replay of a step's graph", 0, [&] {
      return fmt::format("{} rows, {} decode sequences, {} samples", form.rows.padded_rows,
                         form.rows.decodes_count, form.rows.samples);
    });
  }
  if (lanes != nullptr) lanes->launched();
  ++replays_;
}

std::vector<cudaGraph_t> StepGraphs::record(const Streams& streams, StepLanes* lanes, StepLanes::Capture how,
                                            const std::function<void()>& start) {
  if (lanes != nullptr) lanes->capturing(how);
  for (const cudaStream_t stream : streams)
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture of a step");
  start();
  std::vector<cudaGraph_t> out(streams.size());
  for (size_t i = 0; i < streams.size(); ++i)
    must(cudaStreamEndCapture(streams[i], &out[i]), "capture of a step");
  if (lanes != nullptr) lanes->capturing(StepLanes::Capture::kNone);
  return out;
}

std::vector<cudaGraphExec_t> StepGraphs::capture(const Streams& streams, StepLanes* lanes,
                                                 const std::function<void()>& start) {
  std::vector<cudaGraphExec_t> out;
  for (const cudaGraph_t graph : record(streams, lanes, StepLanes::Capture::kGraph, start)) {
    size_t nodes = 0;
    must(cudaGraphGetNodes(graph, nullptr, &nodes), "graph of a step");
    cudaGraphExec_t& made = out.emplace_back(nullptr);
    if (nodes > 0) must(cudaGraphInstantiate(&made, graph, 0), "graph of a step");
    cudaGraphDestroy(graph);
  }
  return out;
}

}  // namespace kvtwin::cuda
