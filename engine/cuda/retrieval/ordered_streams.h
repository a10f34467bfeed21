// The streams of a RetrievedCache and the events between them: the edges of
// docs/design/methods/freekv.md#recall, each in one place.
//
// While they are captured (step_graphs.h), compute, select and recall are three graphs, joined by external
// events: a recall may still run when the step after it begins, so it cannot be part of a graph that the host
// waits for.
//
// For tests, streams can be delayed at random wherever one could overtake another, and HappensBefore can be
// notified of everything, or of everything but one edge.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_ORDERED_STREAMS_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_ORDERED_STREAMS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/cuda/device/happens_before.h"
#include "engine/cuda/device/step_graphs.h"
#include "engine/cuda/kv_cache.h"
#include "engine/cuda/retrieval/retrieved.h"

namespace kvtwin::cuda {

// Memory that HappensBefore is notified of, by name.
namespace watched {
constexpr const char* kPages = "pages of layer";      // KV entries computed here
constexpr const char* kSlots = "slots of layer";      // recalled KV entries
constexpr const char* kQueries = "queries of layer";  // and which heads choose for this step
constexpr const char* kChoices = "choices of layer";  // pages by slot and moves, or tokens
// KV entries on the host, by page: recalls and offloads of one step use different pages.
constexpr const char* kHostCopy = "host page by layers";
}  // namespace watched

class OrderedStreams {
 public:
  // Wrong: what CUDA says.
  static Result<std::unique_ptr<OrderedStreams>> make(uint32_t layers, const OrderTests& tests);
  OrderedStreams(const OrderedStreams&) = delete;
  OrderedStreams& operator=(const OrderedStreams&) = delete;
  ~OrderedStreams();

  // The compute stream is the engine's: it is passed in at each step, with what notes its operations.
  void compute_on(const StepStream& on) { streams_[0] = on.stream, timer_ = on.timer; }
  cudaStream_t stream(StreamKind stream_kind) const { return streams_[static_cast<uint32_t>(stream_kind)]; }

  // Around the start of an operation on its stream: its event before it, and the one behind it.
  void begin(const ListedOperation& one);
  void end(const ListedOperation& one);
  void record(StreamKind stream_kind, const StepEvent& event);
  void wait(StreamKind stream_kind, const StepEvent& event);
  // Another owner's stream waits. (HappensBefore does not know it.)
  void hold(cudaStream_t other, const StepEvent& event);
  // The host waits for a stream.
  void wait_for(StreamKind stream_kind);
  // The host has waited for the compute stream, and everything that it waited for.
  void step_ended();
  // A moment at which this stream may be late.
  void delay_for_tests(StreamKind stream_kind);
  void touches(StreamKind stream_kind, HappensBefore::Access access, const char* what, uint32_t number,
               const char* operation);
  bool watched() const { return watch() != nullptr; }
  // What is started from here on is part of a graph, or of a rehearsal of one.
  void capturing(SideStreams::Capture now) { capturing_ = now; }
  bool captured() const { return capturing_ != SideStreams::Capture::kNone; }

 private:
  void waited_for(StreamKind stream_kind);
  OrderedStreams(uint32_t layers, const OrderTests& tests) : layers_(layers), tests_(tests) {}
  // The watcher. It is not notified of what is captured for replay, because that does not run yet.
  HappensBefore* watch() const { return capturing_ == SideStreams::Capture::kGraph ? nullptr : tests_.watch; }
  uint32_t number(const StepEvent& event) const {
    return static_cast<uint32_t>(event.edge) * layers_ + event.layer;
  }

  const uint32_t layers_;
  const OrderTests tests_;
  cudaStream_t streams_[kStreamKinds] = {};
  OperationTimer* timer_ = nullptr;
  std::vector<cudaEvent_t> events_;
  uint64_t moments_ = 0;
  SideStreams::Capture capturing_ = SideStreams::Capture::kNone;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_ORDERED_STREAMS_H_
