// HostTime: the host time that is added to each step. A property of a machine, found by calibration or from
// the first requests of a real run, and given in the scenario.

#ifndef KVTWIN_MODELS_COST_HOST_TIME_H_
#define KVTWIN_MODELS_COST_HOST_TIME_H_

#include <cmath>
#include <cstdint>

#include "engine/base/units.h"
#include "models/cost/cost_model.h"
#include "models/cost/plan_price.h"

namespace kvtwin {

// The host's time from an event to the commands that follow from it: a fixed part, and one for each decoding
// request.
struct HostPlanning {
  double ns = 0, request_ns = 0;

  Duration of(uint32_t decodes) const { return {std::llround(ns + request_ns * decodes)}; }
};

// Engines such as vLLM launch a pure decode step as one CUDA graph, a step with chunks that fits the captured
// sizes as one graph per layer, and a larger step kernel by kernel; each way has its own time.
struct HostTime {
  int64_t full_graph_ns = 0;
  int64_t piecewise_ns = 0;
  int64_t eager_ns = 0;
  uint32_t capture_tokens_max = 512;  // steps with more tokens than this are not graphs
  PlanPrice planning{};               // the step waits for it too
  double tables_ns = 0;               // page tables, per decoding request

  void add(const HostPlanning& each) {
    const int64_t ns = std::llround(each.ns);
    full_graph_ns += ns, piecewise_ns += ns, eager_ns += ns;
    tables_ns += each.request_ns;
  }
  Ticks of(const StepShape& shape) const {
    const int64_t plan_ns = planning.ns(shape.decodes) + static_cast<int64_t>(tables_ns * shape.decodes);
    if (shape.chunks.empty()) return (full_graph_ns + plan_ns) * kTicksPerNs;
    return ((shape.tokens <= capture_tokens_max ? piecewise_ns : eager_ns) + plan_ns) * kTicksPerNs;
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_HOST_TIME_H_
