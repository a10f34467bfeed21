// Explains one step of a scenario's engine, operation by operation: when each runs, what the step waits for,
// and how much longer an operation could take without delaying the step. Prices are the simulated backend's,
// whichever backend the scenario names; no values are computed.

#ifndef KVTWIN_SCENARIOS_INSPECT_EXPLAIN_H_
#define KVTWIN_SCENARIOS_INSPECT_EXPLAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/steps/step_graph_slack.h"
#include "models/cost/cost_model.h"
#include "scenarios/app/compose.h"
#include "scenarios/output/summary.h"

namespace kvtwin {

struct ExplainedStep {
  uint64_t step = 0;
  uint32_t engine = 0;
  double begins_ns = 0;  // time since the start of the run
  std::string of;        // "4 decodes, contexts 32,768 to 32,800"
  std::string exchange;  // what the price of all-reduces rests on; "": one GPU
  StepGraph graph;       // evaluated
  Ticks begins = 0;      // origin of the OpTimes
  StepTiming timing;
  std::vector<Ticks> carried;  // carried over from earlier steps, by stream, then port
  std::vector<OpTime> times;   // by OpId, like `waits`
  std::vector<OpWait> waits;
  std::vector<StepPart> prices;  // of the model's operations, all layers alike; recalled pages left out
};

// Explains single step `step` of `engine` in the run of the scenario. Errors: the run has no such step.
// REQUIRES: can_simulate(); `composed` has not run.
Result<ExplainedStep> explain_step(const Scenario& scenario, Composed* composed, uint32_t engine,
                                   uint64_t step);

// A step given by its shape instead of a run: all requests are alike.
struct AskedShape {
  uint32_t decodes = 0, context = 0;  // context tokens of each decode before the step
  uint32_t chunks = 0, chunk_tokens = 0, chunk_context = 0;
  // 1: each chunk ends with a compression of its request. Where passes of probe tokens precede compressions:
  // as many requests are compressed after their last pass.
  uint32_t compress = 0;
};
// Parses "decodes=4,context=32768" or "chunks=1,chunk_tokens=2048,chunk_context=0,compress=1", or both.
Result<AskedShape> parse_shape(const std::string& text);
// Explains the third of three such steps, so that it starts from the state that an equal step leaves. Errors:
// the step compresses, and the scenario never does (or at no cost).
Result<ExplainedStep> explain_shape(const Scenario& scenario, Composed* composed, const AskedShape& shape);

// Graphviz: streams are clusters, the critical path is red, predicated operations are dashed, those that do
// not run are dotted. Shows layers [first, last] and operations that belong to no layer.
std::string explained_dot(const ExplainedStep& step, const std::string& title, uint32_t first_layer,
                          uint32_t last_layer);
// table: kinds of operations, critical path, transfers, stalls, prices. json, jsonl and csv: one record per
// operation.
std::string explained_text(const ExplainedStep& step, const std::string& title, OutputFormat format);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_INSPECT_EXPLAIN_H_
