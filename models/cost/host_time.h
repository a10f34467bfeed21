// HostTime: what the machine around a GPU adds to each step. A property of a machine, found by
// calibration or from the first requests of a real run; given in the scenario.

#ifndef KVTWIN_MODELS_COST_HOST_TIME_H_
#define KVTWIN_MODELS_COST_HOST_TIME_H_

#include <cstdint>

#include "models/cost/cost_model.h"
#include "models/cost/plan_price.h"

namespace kvtwin {

// Engines such as vLLM launch a pure-decode step as one CUDA graph, a step with prefill chunks that fits
// the captured sizes as one graph per layer, and anything larger kernel by kernel: three ways, three times.
struct HostTime {
  int64_t full_graph_ns = 0;
  int64_t piecewise_ns = 0;
  int64_t eager_ns = 0;
  uint32_t capture_tokens_max = 512;  // steps with more tokens than this are not graphs
  PlanPrice planning{};               // the step waits for it too
  double tables_ns = 0;               // likewise for the page tables of each request that decodes

  Ticks of(const StepShape& shape) const {
    const int64_t plan_ns = planning.ns(shape.decodes) + static_cast<int64_t>(tables_ns * shape.decodes);
    if (shape.chunks.empty()) return (full_graph_ns + plan_ns) * kTicksPerNs;
    return ((shape.tokens <= capture_tokens_max ? piecewise_ns : eager_ns) + plan_ns) * kTicksPerNs;
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_HOST_TIME_H_
