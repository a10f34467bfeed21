// One step of a scenario's engine, operation by operation: when each runs, what the step waits for, and what
// could take longer without anybody noticing. Prices are those of the simulated backend, whatever backend the
// scenario names: nothing is computed.

#ifndef KVTWIN_SCENARIOS_INSPECT_EXPLAIN_H_
#define KVTWIN_SCENARIOS_INSPECT_EXPLAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/steps/step_graph_slack.h"
#include "scenarios/app/compose.h"
#include "scenarios/output/summary.h"

namespace kvtwin {

struct ExplainedStep {
  uint64_t step = 0;
  uint32_t engine = 0;
  double begins_ns = 0;  // of the run
  std::string of;        // "4 decodes, contexts 32,768 to 32,800"
  StepGraph graph;       // evaluated
  Ticks begins = 0;      // what OpTimes count from
  StepTiming timing;
  std::vector<Ticks> carried;  // what earlier steps left, by stream, then port
  std::vector<OpTime> times;   // by OpId, like `waits`
  std::vector<OpWait> waits;
};

// Single step `step` of `engine`, in the run of the scenario. Errors: the run has no such step.
// REQUIRES: can_simulate(); `composed` is fresh.
Result<ExplainedStep> explain_step(const Scenario& scenario, Composed* composed, uint32_t engine,
                                   uint64_t step);

// A step that nobody has to run for: all requests alike.
struct AskedShape {
  uint32_t decodes = 0, context = 0;  // tokens that each of them has before the step
  uint32_t chunks = 0, chunk_tokens = 0, chunk_context = 0;
  uint32_t compress = 0;  // 1: each chunk ends with a compression of all that its request holds
};
// "decodes=4,context=32768" or "chunks=1,chunk_tokens=2048,chunk_context=0,compress=1", or both.
Result<AskedShape> parse_shape(const std::string& text);
// The third of three such steps, so that it starts from what a step like it leaves. Errors: it compresses,
// and the scenario never does (or at no cost).
Result<ExplainedStep> explain_shape(const Scenario& scenario, Composed* composed, const AskedShape& shape);

// Graphviz: streams as clusters, the critical path in red, predicated operations dashed, those that do not
// happen dotted. Layers [first, last] and what belongs to none.
std::string explained_dot(const ExplainedStep& step, const std::string& title, uint32_t first_layer,
                          uint32_t last_layer);
// table: kinds of operations, critical path, transfers, stalls. json, jsonl and csv: one record per
// operation.
std::string explained_text(const ExplainedStep& step, const std::string& title, OutputFormat format);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_INSPECT_EXPLAIN_H_
