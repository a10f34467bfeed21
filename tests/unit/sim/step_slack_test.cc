// The slack of an operation is exact: it may take that much longer and no tick more.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/base/prng.h"
#include "engine/steps/step_graph_retrieval.h"
#include "engine/steps/step_graph_slack.h"
#include "tests/support/retrieval_names.h"

using namespace kvtwin;
using kvtwin::testing::kArkvale;
using kvtwin::testing::kFreekv;
using kvtwin::testing::kInfinigen;
using kvtwin::testing::kShadowkv;
using kvtwin::testing::RetrievalName;

namespace {

constexpr uint32_t kLayers = 4;

// Every operation has a different duration, so that no two paths through the graph tie.
struct Setting {
  RetrievalStep step;
  std::vector<OpCost> costs;
  std::vector<uint32_t> outcomes;
};

Setting make(RetrievalName method, uint64_t seed, bool flagged) {
  RetrievalStepSpec spec;
  spec.kind = method;
  spec.speculation = method == kFreekv;
  spec.layers = kLayers;
  spec.layers_dense = method == kInfinigen ? 1 : 0;
  spec.converts = method == kFreekv || method == kArkvale;
  Setting out{make_retrieval_step(spec), {}, {}};
  StepGraph& graph = out.step.graph;
  for (uint32_t i = 0; i < graph.op_count(); ++i) {
    const auto ticks = static_cast<Ticks>(1 + draw({seed, i}) % 1000);
    const bool counted = is_transfer(graph.op(OpId{i}).kind);
    out.costs.push_back(counted ? OpCost{.fixed = ticks, .unit = 50, .unit_bytes = 1}
                                : OpCost{.fixed = ticks});
    graph.set_cost(OpId{i}, out.costs.back());
  }
  out.outcomes.resize(out.step.outcome_count());
  for (uint32_t l = 0; l < kLayers; ++l) {
    out.outcomes[out.step.blocking(l)] = flagged ? 1 + l % 2 : 0;
    out.outcomes[out.step.background(l)] = 3;
    out.outcomes[out.step.flagged(l)] = flagged;
    out.outcomes[out.step.unflagged(l)] = !flagged;
  }
  return out;
}

struct Ends {
  Ticks first = 0, second = 0;
  friend bool operator==(const Ends&, const Ends&) = default;
};

// A step from `carry` whose operation `op` takes `longer`, followed by a usual one.
Ends ends_with(Setting* setting, StepCarry carry, Ticks start, OpId op, Ticks longer) {
  StepGraph& graph = setting->step.graph;
  OpCost cost = setting->costs[static_cast<uint32_t>(op)];
  cost.fixed += longer;
  graph.set_cost(op, cost);
  Ends ends;
  ends.first = graph.evaluate(start, setting->outcomes, &carry).end;
  graph.set_cost(op, setting->costs[static_cast<uint32_t>(op)]);
  ends.second = graph.evaluate(ends.first, setting->outcomes, &carry).end;
  return ends;
}

}  // namespace

TEST_CASE("step slack: within it both steps end as before, with one tick more one of them ends later") {
  int checked = 0, predicated = 0, background = 0;
  for (const RetrievalName method : {kFreekv, kArkvale, kInfinigen, kShadowkv}) {
    for (const bool flagged : {true, false}) {
      if (!flagged && method != kFreekv) continue;
      for (uint64_t seed = 0; seed < 5; ++seed) {
        Setting setting = make(method, seed, flagged);
        StepGraph& graph = setting.step.graph;
        StepCarry carry;
        Ticks start = 0;
        for (int i = 0; i < 6; ++i) start = graph.evaluate(start, setting.outcomes, &carry).end;
        const StepCarry before = carry;
        const StepTiming timing = graph.evaluate(start, setting.outcomes, &carry);
        const std::vector<OpWait> waits = waits_of(graph, start, timing, before.at);
        const Ends usual = ends_with(&setting, before, start, OpId{0}, 0);
        REQUIRE(usual.second - usual.first == timing.end - start);  // settled: the next step is the same
        for (uint32_t i = 0; i < graph.op_count(); ++i) {
          CAPTURE(method.name);
          CAPTURE(seed);
          CAPTURE(i);
          const Ticks slack = waits[i].slack;
          if (slack == kNobodyWaits) continue;
          REQUIRE(slack >= 0);
          CHECK(ends_with(&setting, before, start, OpId{i}, slack) == usual);
          CHECK(ends_with(&setting, before, start, OpId{i}, slack + 1) != usual);
          if (waits[i].critical) CHECK(slack == 0);
          ++checked;
          predicated += graph.op(OpId{i}).outcome != kAlways;
          background += !graph.op(OpId{i}).required;
        }
      }
    }
  }
  CHECK(checked > 500);
  CHECK(predicated > 100);
  CHECK(background > 20);
}

TEST_CASE(
    "step slack: stalls of the computing stream and its operations fill the step, and exposed ones are "
    "stalls") {
  for (const RetrievalName method : {kFreekv, kArkvale, kInfinigen}) {
    Setting setting = make(method, 7, true);
    StepGraph& graph = setting.step.graph;
    StepCarry carry;
    const Ticks start = graph.evaluate(0, setting.outcomes, &carry).end;
    const std::vector<Ticks> before = carry.at;
    const StepTiming timing = graph.evaluate(start, setting.outcomes, &carry);
    const std::vector<OpWait> waits = waits_of(graph, start, timing, before);
    Ticks busy = 0, stalled = 0;
    for (uint32_t i = 0; i < graph.op_count(); ++i) {
      if (graph.op(OpId{i}).stream != StreamId{0} || graph.absent(OpId{i})) continue;
      busy += graph.duration(OpId{i});
      stalled += waits[i].stalled;
      if (waits[i].stalled > 0)
        CHECK((waits[i].stalled_for != OpId{UINT32_MAX} || waits[i].stalled_port != PortId{UINT16_MAX}));
    }
    CHECK(busy + stalled == timing.end - start);
    CHECK(timing.exposed <= stalled);
    if (method != kInfinigen) CHECK(timing.exposed > 0);  // which queries a layer ahead
  }
}
