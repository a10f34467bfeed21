// Single and coalesced steps for a StepClock, and their end times.

#ifndef KVTWIN_TESTS_UNIT_SIM_CLOCK_RUNS_H_
#define KVTWIN_TESTS_UNIT_SIM_CLOCK_RUNS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "models/catalog/catalog.h"
#include "sim/clock/step_clock.h"

namespace kvtwin {

inline sim::GraphPricerSpec identity_spec(const char* llm = "llama-3.1-8b") {
  sim::GraphPricerSpec spec;
  spec.graph.layers = Catalog().llm(llm).value().layers;
  return spec;
}

inline LaunchStep step_of(uint64_t number, uint32_t repeat, std::span<const PlanEntry> entries) {
  LaunchStep step{
      .step = StepId{number}, .repeat = repeat, .entries = entries, .allocations = {}, .prefix_hits = {}};
  for (const PlanEntry& entry : entries) step.tokens += entry.tokens, step.tokens_padded += entry.stored();
  return step;
}

// Ends of all steps of a clock that runs the launches in sequence.
inline std::vector<int64_t> ends_of(sim::StepClock* clock, const std::vector<LaunchStep>& launches) {
  std::vector<int64_t> ends;
  Instant now{};
  for (const LaunchStep& launch : launches) {
    clock->launch(now, launch);
    while (!clock->idle()) {
      while (!clock->next_event().known) clock->look_ahead(clock->next_event().at);
      const StepDone done = clock->take();
      for (const Instant end : done.ends) ends.push_back(end.ns);
      now = done.ends.back();
    }
  }
  return ends;
}

}  // namespace kvtwin

#endif  // KVTWIN_TESTS_UNIT_SIM_CLOCK_RUNS_H_
