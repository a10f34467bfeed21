// The state that a StepClock keeps in addition to end times: graph keys, and the host's concurrent work.

#include <doctest/doctest.h>

#include <initializer_list>
#include <vector>

#include "models/catalog/catalog.h"
#include "models/cost/retrieval_cost.h"
#include "tests/support/retrieval_names.h"
#include "tests/unit/sim/clock_runs.h"

using namespace kvtwin;
using kvtwin::testing::kQuest;

namespace {

// Steps take 1 us, but at least 9 us where the host creates their graph.
class Busy final : public CostModel {
 public:
  StepCost step(const StepShape& shape) override {
    forms.push_back(shape.graph);
    StepCost cost;
    cost.device = cost.by_evidence[0] = 1000 * kTicksPerNs;
    cost.least = shape.graph == GraphUse::kCaptured ? 9000 * kTicksPerNs : 0;
    return cost;
  }
  uint32_t graphs_kept() const override { return 4; }
  std::vector<GraphUse> forms;
};

}  // namespace

TEST_CASE("step clock: a step takes at least the host's time, also through its graph") {
  const std::vector<PlanEntry> one = {{RequestId{1}, EntryKind::kDecode, true, true, 1, 10}};
  for (const bool by_graph : {false, true}) {
    CAPTURE(by_graph);
    Busy cost;
    sim::GraphPricer pricer(identity_spec(), &cost, nullptr);
    sim::StepClock clock(EngineId{0}, &cost, 1);
    if (by_graph) clock.extend(nullptr, &pricer, 1, nullptr);
    CHECK(ends_of(&clock, {step_of(0, 4, one)}) == std::vector<int64_t>{1'000, 10'000, 11'000, 12'000});
  }
}

TEST_CASE(
    "step clock: graph keys of steps that select pages: the number of such requests, and completed pages") {
  const Catalog catalog;
  const LlmSpec llm = catalog.llm("llama-3.1-8b").value();
  const RetrievalSpec quest = retrieval_defaults(kQuest);
  sim::GraphPricerSpec spec = identity_spec();
  spec.graph.kind = kQuest, spec.policy = quest, spec.page_tokens = 32;
  Busy cost;
  RetrievalGeometry geometry;
  geometry.page_tokens = 32, geometry.summary_vectors = 2;
  const RetrievalCost prices(llm, catalog.device("h200").value(), catalog.node("h200").value(), 1, geometry);
  sim::GraphPricer pricer(spec, &cost, &prices);
  const auto graph_key = [&](std::initializer_list<uint32_t> contexts, uint32_t offset = 0) {
    std::vector<PlanEntry> entries;
    for (const uint32_t context : contexts)
      entries.push_back(
          {RequestId{static_cast<uint32_t>(entries.size())}, EntryKind::kDecode, true, true, 1, context});
    StepShape shape;
    shape.decodes = shape.tokens = shape.tokens_padded = shape.logits_rows =
        static_cast<uint32_t>(entries.size());
    return pricer.graph_key(shape, entries, offset);
  };
  const uint32_t budget = quest.budget_tokens;
  CHECK(graph_key({64, 100}) == graph_key({70, 200}));
  CHECK(graph_key({64, 100}).choosing == 0);
  CHECK(graph_key({64, 4 * budget}).choosing == 1);
  CHECK(graph_key({5 * budget, 4 * budget}) == graph_key({9 * budget, 8 * budget}));
  CHECK(graph_key({64, 100}) != graph_key({64, 4 * budget}));
  CHECK_FALSE(graph_key({64, 100}).fills);
  CHECK(graph_key({63, 100}).fills);  // the page's last token
  CHECK(graph_key({64, 100}, 31).fills);
  CHECK(graph_key({63, 100}) == graph_key({200, 95}));
}
