// The cost of the simulated backend: one SimGrid event, one step, one copy, one evaluation of a step graph.
//
// Each benchmark reports a digest of its output, so that a faster program that computes something else is
// noticed.

#include <benchmark/benchmark.h>

#include <vector>

#include "sim/sim_backend.h"
#include "tests/support/decode_step.h"
#include "tests/unit/sim/script.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// `steps` steps of 50 requests, coalesced by `repeat`, answered and launched again.
void steps(benchmark::State& state) {
  const auto repeat = static_cast<uint32_t>(state.range(0));
  const std::vector<PlanEntry> entries(50, {RequestId{1}, EntryKind::kDecode, false, true, 1, 1000});
  double digest = 0;
  int64_t count = 0;
  ToyCost cost(1, false, 0);
  sim::SimConfig config;
  config.engines.push_back({.cost = &cost, .page_bytes = 1'000'000});
  sim::simulate(config, [&](Backend* backend) {
    Instant now;
    Event event;
    for (auto _ : state) {
      const auto step = static_cast<uint64_t>(count);
      backend->submit(LaunchStep{.engine = {},
                                 .step = StepId{step},
                                 .repeat = repeat,
                                 .tokens = 50,
                                 .tokens_padded = 64,
                                 .entries = entries,
                                 .allocations = {},
                                 .prefix_hits = {}});
      backend->next(&now, &event);
      count += repeat;
    }
    digest = static_cast<double>(now.ns) / static_cast<double>(count);
  });
  state.SetItemsProcessed(count);
  state.counters["ns_of_backend_per_step"] = digest;
}

// A timer only: SimGrid's time to bring the driver to the next instant.
void simgrid_event(benchmark::State& state) {
  ToyCost cost(1, false, 0);
  sim::SimConfig config;
  config.engines.push_back({.cost = &cost});
  sim::simulate(config, [&](Backend* backend) {
    Instant now;
    Event event;
    for (auto _ : state) {
      backend->submit(SetTimer{kClient, {}, {now.ns + 1000}});
      backend->next(&now, &event);
    }
  });
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

// A transfer of one page of an engine with `range` GPUs, alone.
void transfer(benchmark::State& state) {
  ToyCost cost(1, false, 0);
  sim::SimConfig config;
  config.node.gpus = static_cast<uint32_t>(state.range(0));
  config.engines.push_back({.cost = &cost, .page_bytes = 4'000'000, .gpus = config.node.gpus});
  sim::simulate(config, [&](Backend* backend) {
    Instant now;
    Event event;
    const PageId page{};
    uint64_t number = 0;
    for (auto _ : state) {
      backend->submit(
          StartTransfer{{}, TransferId{number++}, {}, Tier::kHost, Tier::kGpu, {&page, 1}, {&page, 1}});
      backend->next(&now, &event);
    }
  });
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

void step_graph(benchmark::State& state) {
  const auto recall = static_cast<RecallTiming>(state.range(1));
  DecodeStep step = make_decode_step({.layers = static_cast<uint32_t>(state.range(0)), .recall = recall});
  DecodeStepCosts costs;
  costs.qkv.fixed = 6'000'000;
  costs.attention.fixed = 11'000'000;
  costs.out.fixed = 4'000'000;
  costs.ffn.fixed = 19'000'000;
  costs.recall = {.fixed = 22'000'000, .bytes = 1'100'000};
  step.set_costs(costs);
  StepCarry carry;
  Ticks end = 0;
  for (auto _ : state) {
    const Ticks start = end;
    end = step.graph.evaluate(start, {}, &carry).end;
    state.counters["ticks"] = static_cast<double>(end - start);
  }
  state.counters["ops"] = step.graph.op_count();
  state.counters["pieces"] = step.graph.node_count();
}

}  // namespace

BENCHMARK(simgrid_event);
BENCHMARK(steps)->Arg(1)->Arg(10)->Arg(1000);
BENCHMARK(transfer)->Arg(1)->Arg(4);
BENCHMARK(step_graph)
    ->ArgNames({"layers", "recall"})
    ->Args({32, static_cast<int>(RecallTiming::kNone)})
    ->Args({32, static_cast<int>(RecallTiming::kSameStep)})
    ->Args({32, static_cast<int>(RecallTiming::kNextStep)})
    ->Args({80, static_cast<int>(RecallTiming::kSameStep)});
