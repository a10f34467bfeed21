// waits_of() computes the slack of each operation of an evaluated step: how much later it could end without
// delaying the end of the step, or of the next step of the same shape. `kvtwin explain` uses it to show what
// is worth accelerating.
//
// It is a backward longest path over operations, not over contracted chains, so that each operation has its
// own slack. The next step bounds background operations. It is assumed to equal this step, to begin when this
// one ends, and to wait for each port and stream at the same place.

#ifndef KVTWIN_ENGINE_STEPS_STEP_GRAPH_SLACK_H_
#define KVTWIN_ENGINE_STEPS_STEP_GRAPH_SLACK_H_

#include <limits>
#include <vector>

#include "engine/steps/step_graph.h"

namespace kvtwin {

constexpr Ticks kNobodyWaits = std::numeric_limits<Ticks>::max();

struct OpWait {
  Ticks slack = kNobodyWaits;  // kNobodyWaits: absent, or no operation waits for its end
  bool critical = false;       // part of StepGraph::critical_path()
  // Time that its stream was idle before it, and the cause that ended last.
  Ticks stalled = 0;
  OpId stalled_for{UINT32_MAX};     // UINT32_MAX: none, or of an earlier step
  PortId stalled_port{UINT16_MAX};  // set if the cause that ended last is a port
};

// Result by OpId. `carried` is the state that the step started from (StepCarry::at before its evaluation;
// empty: none). REQUIRES: the last evaluation of `graph` began at `start` and returned `timing`.
std::vector<OpWait> waits_of(const StepGraph& graph, Ticks start, const StepTiming& timing,
                             std::span<const Ticks> carried);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_STEPS_STEP_GRAPH_SLACK_H_
