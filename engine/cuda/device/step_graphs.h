// StepGraphs keeps CUDA graphs of steps: what starting some 300 operations costs the host (5 us each), a
// replay costs once.
//
// What a step starts is fixed by its StepGraphKey: where its lists lie and how long they are. What stands in
// the lists is not part of it, so a graph serves all steps of one form: those of a run of coalesced steps, in
// which requests decode and none is admitted or ends. A form is captured when it comes up for the second
// time, while the device computes that step: the first time cuBLASLt chooses and kernels are loaded, and many
// forms never come back. The third time it is instantiated, again during the device's work: both at once take
// the host longer than a small step takes the device. From the fourth time on it is replayed. The least
// recently used graph makes room.
//
// Forms that are known before the first step are prepared: their graphs are made at start-up and stay. These
// are steps of decodes, padded to captured sizes.
//
// A KvCache that moves pages during steps has streams of its own (SideStreams). Each is captured as a graph
// of its own, and external events join the graphs: what a lane does for one step may still go on while the
// next one begins, which one graph could not, because a graph ends when all of it has ended.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_STEP_GRAPHS_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_STEP_GRAPHS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "engine/cuda/device/step_rows.h"

namespace kvtwin::cuda {

// Streams that steps use besides their own.
class SideStreams {
 public:
  enum class Capture : uint8_t {
    kNone,       // what is started runs
    kGraph,      // it becomes a graph; what is on streams that are no lanes is not to be started
    kRehearsal,  // the same without keeping the graph: a replay follows, and the watcher is notified of it
  };
  virtual ~SideStreams() = default;
  // Those that are captured.
  virtual std::vector<cudaStream_t> streams() const = 0;
  virtual void capturing(Capture now) = 0;
  // Whether a watcher is notified of every operation.
  virtual bool watched() const = 0;
  // All graphs of the step at hand were launched: starts what is on streams that are no lanes.
  virtual void launched() = 0;
};

class StepGraphs {
 public:
  // The most graph keys at a time; a graph of an 8B model's step takes about 300 nodes. 0: none, ever.
  explicit StepGraphs(uint32_t graphs_max) : graphs_max_(graphs_max) {}
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs();

  // Starts on `stream`, and on `side_streams` (null: there are none), what `start` starts there. REQUIRES:
  // for equal `graph_key` that is always the same, and nothing of it waits for the host.
  void run(const StepGraphKey& graph_key, cudaStream_t stream, SideStreams* side_streams,
           const std::function<void()>& start);

  // Makes the graphs of a form before its first step, without computing anything. They are never evicted.
  // REQUIRES: as run(); the kernels are loaded.
  void prepare(const StepGraphKey& graph_key, cudaStream_t stream, SideStreams* side_streams,
               const std::function<void()>& start);

  uint64_t replays() const { return replays_; }

 private:
  struct Graph {
    StepGraphKey graph_key;
    std::vector<cudaGraph_t> captured;    // the step's, then its lanes'; none: seen once
    std::vector<cudaGraphExec_t> graphs;  // the same; empty: not instantiated yet
  };
  using Streams = std::vector<cudaStream_t>;
  static Streams streams_of(cudaStream_t stream, SideStreams* side_streams);
  void replay(const Graph& one, const Streams& streams, SideStreams* side_streams,
              const std::function<void()>& start);
  static std::vector<cudaGraph_t> record(const Streams& streams, SideStreams* side_streams,
                                         SideStreams::Capture how, const std::function<void()>& start);
  void instantiate(Graph* one);
  static void forget(const Graph& one);

  const uint32_t graphs_max_;
  std::list<Graph> graphs_;  // the last used first
  std::vector<Graph> prepared_;
  cudaStream_t upload_ = nullptr;  // of graphs, during steps
  uint64_t replays_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_STEP_GRAPHS_H_
