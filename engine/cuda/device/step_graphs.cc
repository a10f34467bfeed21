#include "engine/cuda/device/step_graphs.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

StepGraphs::~StepGraphs() {
  for (const Graph& one : graphs_) forget(one);
  for (const Graph& one : prepared_) forget(one);
  if (upload_ != nullptr) cudaStreamDestroy(upload_);
}

// The step's own replays have completed, because the host has waited for its tokens; side streams may still
// run.
void StepGraphs::forget(const Graph& one) {
  if (one.graphs.size() > 1) cudaDeviceSynchronize();
  for (const cudaGraph_t graph : one.captured) cudaGraphDestroy(graph);
  for (const cudaGraphExec_t graph : one.graphs) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }
}

StepGraphs::Streams StepGraphs::streams_of(cudaStream_t stream, SideStreams* side_streams) {
  Streams out{stream};
  if (side_streams == nullptr) return out;
  for (const cudaStream_t lane : side_streams->streams()) out.push_back(lane);
  return out;
}

void StepGraphs::prepare(const StepGraphKey& graph_key, cudaStream_t stream, SideStreams* side_streams,
                         const std::function<void()>& start) {
  if (graphs_max_ == 0) return;
  Graph& one = prepared_.emplace_back(Graph{graph_key, {}, {}});
  one.captured = record(streams_of(stream, side_streams), side_streams, SideStreams::Capture::kGraph, start);
  instantiate(&one);
}

void StepGraphs::run(const StepGraphKey& graph_key, cudaStream_t stream, SideStreams* side_streams,
                     const std::function<void()>& start) {
  if (graphs_max_ == 0) return start();
  const auto is_it = [&](const Graph& one) { return one.graph_key == graph_key; };
  const Streams streams = streams_of(stream, side_streams);
  const auto ready = std::find_if(prepared_.begin(), prepared_.end(), is_it);
  if (ready != prepared_.end()) return replay(*ready, streams, side_streams, start);
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), is_it);
  if (found == graphs_.end()) {
    if (graphs_.size() == graphs_max_) {
      forget(graphs_.back());
      graphs_.pop_back();
    }
    graphs_.push_front({graph_key, {}, {}});
    return start();
  }
  graphs_.splice(graphs_.begin(), graphs_, found);
  // The device is busy with this step while the host prepares the graphs that a later step replays.
  if (found->captured.empty()) {
    start();
    found->captured = record(streams, side_streams, SideStreams::Capture::kGraph, start);
    return;
  }
  if (found->graphs.empty()) {
    start();
    return instantiate(&*found);
  }
  replay(*found, streams, side_streams, start);
}

void StepGraphs::replay(const Graph& one, const Streams& streams, SideStreams* side_streams,
                        const std::function<void()>& start) {
  if (side_streams != nullptr && side_streams->watched()) {
    for (const cudaGraph_t graph : record(streams, side_streams, SideStreams::Capture::kRehearsal, start))
      cudaGraphDestroy(graph);
  }
  // In this order, because a side stream waits for events that the previous graph records.
  for (size_t i = 0; i < streams.size(); ++i) {
    if (one.graphs[i] == nullptr) continue;
    must(cudaGraphLaunch(one.graphs[i], streams[i]), "replay of a step's graph", 0, [&] {
      const DeviceRows& rows = one.graph_key.rows;
      return fmt::format("{} rows, {} decode sequences, {} samples", rows.padded_rows, rows.decodes_count,
                         rows.samples);
    });
  }
  if (side_streams != nullptr) side_streams->launched();
  ++replays_;
}

std::vector<cudaGraph_t> StepGraphs::record(const Streams& streams, SideStreams* side_streams,
                                            SideStreams::Capture how, const std::function<void()>& start) {
  if (side_streams != nullptr) side_streams->capturing(how);
  for (const cudaStream_t stream : streams)
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture of a step");
  start();
  std::vector<cudaGraph_t> out(streams.size());
  for (size_t i = 0; i < streams.size(); ++i)
    must(cudaStreamEndCapture(streams[i], &out[i]), "capture of a step");
  if (side_streams != nullptr) side_streams->capturing(SideStreams::Capture::kNone);
  return out;
}

// Uploads the graphs now, so that the first replay does not wait for it.
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
