// How much later each operation of an evaluated step could end without the step, or the next one like it,
// ending later: for whoever asks what is worth making faster (`kvtwin explain`).
//
// Backward longest path over operations (not over contracted chains, so that each has a number of its own).
// What a background operation may take is decided by the step behind it: it is assumed to be alike, to begin
// when this one ends, and to wait for each port and stream where this one did.

#ifndef KVTWIN_ENGINE_STEPS_STEP_GRAPH_SLACK_H_
#define KVTWIN_ENGINE_STEPS_STEP_GRAPH_SLACK_H_

#include <limits>
#include <vector>

#include "engine/steps/step_graph.h"

namespace kvtwin {

constexpr Ticks kNobodyWaits = std::numeric_limits<Ticks>::max();

struct OpWait {
  Ticks slack = kNobodyWaits;  // absent operations, and those whose end nobody waits for: kNobodyWaits
  bool critical = false;       // of StepGraph::critical_path()
  // Its stream stood still before it for so long, and what ended last of what it waited for.
  Ticks stalled = 0;
  OpId stalled_for{UINT32_MAX};     // UINT32_MAX: an earlier step's, or nothing
  PortId stalled_port{UINT16_MAX};  // likewise, where a port was the last
};

// By OpId. `carried`: what the step started from (StepCarry::at before its evaluation; empty: nothing).
// REQUIRES: the graph was evaluated, beginning at `start`, with this outcome.
std::vector<OpWait> waits_of(const StepGraph& graph, Ticks start, const StepTiming& timing,
                             std::span<const Ticks> carried);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_STEPS_STEP_GRAPH_SLACK_H_
