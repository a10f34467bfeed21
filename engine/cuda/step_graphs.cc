#include "engine/cuda/step_graphs.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cuda/cuda_check.h"

namespace kvtwin::cuda {

StepGraphs::~StepGraphs() {
  for (const Graph& one : graphs_) forget(one);
  if (upload_ != nullptr) cudaStreamDestroy(upload_);
}

// The step's own replays have ended, because the host has waited for its tokens; what lanes do may go on.
void StepGraphs::forget(const Graph& one) {
  if (one.graphs.size() > 1) cudaDeviceSynchronize();
  for (const cudaGraph_t graph : one.captured) cudaGraphDestroy(graph);
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
    graphs_.push_front({form, {}, {}});
    return start();
  }
  graphs_.splice(graphs_.begin(), graphs_, found);
  Streams streams{stream};
  if (lanes != nullptr) {
    for (const cudaStream_t lane : lanes->streams()) streams.push_back(lane);
  }
  // The device is busy with this step while the host prepares what a later one replays.
  if (found->captured.empty()) {
    start();
    found->captured = record(streams, lanes, StepLanes::Capture::kGraph, start);
    return;
  }
  if (found->graphs.empty()) {
    start();
    return instantiate(&*found);
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

// What is uploaded now the first replay need not wait for.
void StepGraphs::instantiate(Graph* one) {
  if (upload_ == nullptr)
    must(cudaStreamCreateWithFlags(&upload_, cudaStreamNonBlocking), "cudaStreamCreate");
  for (const cudaGraph_t graph : one->captured) {
    size_t nodes = 0;
    must(cudaGraphGetNodes(graph, nullptr, &nodes), "graph of a step");
    cudaGraphExec_t& made = one->graphs.emplace_back(nullptr);
    if (nodes == 0) continue;
    must(cudaGraphInstantiate(&made, graph, 0), "graph of a step");
    must(cudaGraphUpload(made, upload_), "upload of a step's graph");
  }
}

}  // namespace kvtwin::cuda
