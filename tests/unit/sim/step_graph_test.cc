// The step graph compared with sums computed by hand, and with itself without contraction.

#include "engine/steps/step_graph.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/base/prng.h"
#include "models/cost/cost_model.h"
#include "tests/support/decode_step.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

Ticks us(double value) { return static_cast<Ticks>(value * 1000 * kTicksPerNs + 0.5); }
double as_us(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs / 1000; }

// The textbook decode step of docs/design/simgrid.md#decode-step: 32 layers of qkv 6, attention 11, output 4,
// FFN 19 us.
DecodeStepCosts textbook(double recall_bytes, double launch_us) {
  DecodeStepCosts costs;
  costs.qkv.fixed = us(6);
  costs.attention.fixed = us(11);
  costs.out.fixed = us(4);
  costs.ffn.fixed = us(19);
  costs.recall = {.fixed = us(2.3 + recall_bytes / 55e3), .bytes = static_cast<uint64_t>(recall_bytes)};
  costs.launch.fixed = us(launch_us);
  return costs;
}

struct Run {
  DecodeStep step;
  StepCarry carry;
  StepTiming timing;

  Run(const DecodeStepSpec& spec, const DecodeStepCosts& costs) : step(make_decode_step(spec)) {
    step.set_costs(costs);
    timing = step.graph.evaluate(0, {}, &carry);
  }
};

}  // namespace

TEST_CASE("step graph: compute-bound: a recall shows only where the first layer waits for it") {
  // T = 32 k + (c - qkv), k = 40, c = 2.3 + 1.1 MB / 55 GB/s = 22.3
  const Run run({.layers = 32, .recall = RecallTiming::kSameStep}, textbook(1.1e6, 0));
  CHECK(as_us(run.timing.end) == doctest::Approx(1296.3).epsilon(1e-9));
  CHECK(as_us(run.timing.exposed) == doctest::Approx(22.3 - 6).epsilon(1e-9));
  CHECK(as_us(run.timing.hidden) == doctest::Approx(32 * 22.3 - 16.3).epsilon(1e-9));
  CHECK(run.timing.bytes_in == 32 * 1'100'000);
}

TEST_CASE("step graph: copy-bound: the step is its copies and one layer's tail") {
  // T = 32 c + attention + output + ffn, c = 2.3 + 5 MB / 55 GB/s
  const Run run({.layers = 32, .recall = RecallTiming::kSameStep}, textbook(5e6, 0));
  CHECK(as_us(run.timing.end) == doctest::Approx(3016.690909).epsilon(1e-9));
  CHECK(as_us(run.timing.exposed) == doctest::Approx(3016.690909 - 1280).epsilon(1e-8));
  // The critical path has every recall, then the last layer's tail.
  const std::vector<OpId> path = run.step.graph.critical_path();
  CHECK(path.front() == run.step.recall[0]);
  CHECK(std::count_if(path.begin(), path.end(),
                      [&](OpId op) { return run.step.graph.op(op).kind == OpKind::kRecall; }) == 32);
  CHECK(path.back() == run.step.sample[0]);
}

TEST_CASE("step graph: launch-bound: the step is its launches and the last kernel") {
  DecodeStepSpec spec{.layers = 32, .launch_per_kernel = true, .recall = RecallTiming::kSameStep};
  Run run(spec, textbook(1.1e6, 12));
  run.step.graph.set_cost(run.step.launch.back(), {});  // the textbook step does not sample
  run.carry = {};
  run.timing = run.step.graph.evaluate(0, {}, &run.carry);
  CHECK(as_us(run.timing.end) == doctest::Approx(1555.0).epsilon(1e-9));  // 128 x 12 + 19
}

TEST_CASE("step graph: a recall for the next step is hidden while the step lasts longer than the recalls") {
  const DecodeStepSpec spec{.layers = 32, .recall = RecallTiming::kNextStep};
  Run run(spec, textbook(1.1e6, 0));
  // No earlier step has recalled, so there is nothing to wait for; this step's recalls do not delay it.
  CHECK(as_us(run.timing.end) == doctest::Approx(1280));
  CHECK(run.timing.exposed == 0);
  for (int i = 0; i < 5; ++i) {
    const Ticks start = run.timing.end;
    run.timing = run.step.graph.evaluate(start, {}, &run.carry);
    CHECK(as_us(run.timing.end - start) == doctest::Approx(1280));
  }
  // 93.2 us per layer: 32 of them take 2983 us, more than the step, so the copy engine limits.
  Run slow(spec, textbook(5e6, 0));
  Ticks start = slow.timing.end;
  for (int i = 0; i < 20; ++i) {
    slow.timing = slow.step.graph.evaluate(start, {}, &slow.carry);
    const Ticks took = slow.timing.end - start;
    start = slow.timing.end;
    if (i >= 5) CHECK(as_us(took) == doctest::Approx(32 * (2.3 + 5e6 / 55e3)).epsilon(1e-9));
  }
  CHECK(slow.timing.exposed > us(1000));
}

TEST_CASE("step graph: an operation with an outcome of 0 takes no time and moves nothing") {
  DecodeStepSpec spec{.layers = 4, .recall = RecallTiming::kSameStep, .recall_by_outcome = true};
  DecodeStep step = make_decode_step(spec);
  DecodeStepCosts costs = textbook(0, 0);
  costs.recall = {.fixed = us(2), .unit = us(10), .bytes = 0, .unit_bytes = 1000};
  step.set_costs(costs);
  StepCarry carry;
  const uint32_t none[] = {0, 0, 0, 0}, some[] = {3, 0, 0, 1};
  CHECK(as_us(step.graph.evaluate(0, none, &carry).end) == doctest::Approx(160));
  carry = {};
  const StepTiming timing = step.graph.evaluate(0, some, &carry);
  CHECK(as_us(timing.end) ==
        doctest::Approx(160 + 32 - 6));  // 2 + 30 before the first attention, qkv is concurrent
  CHECK(timing.bytes_in == 4000);
}

TEST_CASE("step graph: tensor parallelism adds two all-reduces per layer") {
  DecodeStep step = make_decode_step({.layers = 32, .tensor_parallel = true});
  DecodeStepCosts costs = textbook(0, 0);
  costs.all_reduce.fixed = us(5);
  costs.sample.fixed = us(7);
  costs.host.fixed = us(50);
  step.set_costs(costs);
  StepCarry carry;
  CHECK(as_us(step.graph.evaluate(0, {}, &carry).end) == doctest::Approx(1280 + 320 + 7 + 50));
}

TEST_CASE("step graph: contraction changes nothing: random graphs compared with the definition") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    StepGraph graph;
    const auto streams = static_cast<uint16_t>(prng.range(1, 4));
    for (uint16_t i = 0; i < streams; ++i) graph.add_stream("s");
    const auto ops = static_cast<uint32_t>(prng.range(1, 40));
    for (uint32_t i = 0; i < ops; ++i) {
      const StreamId stream{static_cast<uint16_t>(prng.range(0, streams - 1u))};
      const OpKind kind = prng.chance(1, 4) ? OpKind::kRecall : OpKind::kGemm;
      graph.add({kind, stream, kNoLayer, prng.chance(2, 3)});
      for (uint64_t e = prng.range(0, i > 0 ? 2 : 0); e > 0; --e) {
        graph.after(OpId{i}, OpId{static_cast<uint32_t>(prng.range(0, i - 1))});
      }
    }
    struct Port {
      OpId from{}, to{};
      Ticks at = 0;  // by the test's own sums
    };
    std::vector<Port> ports;
    for (uint16_t i = 0; i < 3; ++i) {
      const PortId port = graph.add_port("p", i);
      const OpId from{static_cast<uint32_t>(prng.range(0, ops - 1))},
          to{static_cast<uint32_t>(prng.range(0, ops - 1))};
      graph.feed(port, from);
      graph.after(to, port);
      ports.push_back({from, to});
    }
    graph.seal();
    CHECK(graph.node_count() <= graph.op_count());
    StepCarry carry;
    std::vector<OpTime> times;
    Ticks start = 0;
    std::vector<Ticks> stream_free(streams, 0);
    for (int round = 0; round < 3; ++round) {
      for (uint32_t i = 0; i < ops; ++i)
        graph.set_cost(OpId{i}, {.fixed = static_cast<Ticks>(prng.range(0, 1000))});
      const StepTiming timing = graph.evaluate(start, {}, &carry);
      graph.times(&times);
      std::vector<Ticks> end(ops, 0);
      Ticks last = start;
      for (uint32_t i = 0; i < ops; ++i) {  // ids are a topological order here
        const auto stream = static_cast<size_t>(graph.op(OpId{i}).stream);
        Ticks begins = std::max(start, stream_free[stream]);
        for (const OpId cause : graph.causes(OpId{i}))
          begins = std::max(begins, end[static_cast<uint32_t>(cause)]);
        for (const Port& port : ports) {
          if (port.to == OpId{i}) begins = std::max(begins, port.at);
        }
        end[i] = stream_free[stream] = begins + graph.cost(OpId{i}).fixed;
        if (graph.op(OpId{i}).required) last = std::max(last, end[i]);
        REQUIRE(times[i].start == begins);
        REQUIRE(times[i].end == end[i]);
      }
      for (Port& port : ports) port.at = end[static_cast<uint32_t>(port.from)];
      REQUIRE(timing.end == last);
      Ticks along = 0;
      for (const OpId op : graph.critical_path()) along += graph.cost(op).fixed;
      CHECK(along <= timing.end - start);
      if (round == 0) CHECK(along == timing.end - start);
      start += (timing.end - start) / 2;  // early, so that the carried state decides
    }
  }
}

TEST_CASE("step graph: a port gives the end of its operation, not of later ones") {
  StepGraph graph;
  const StreamId compute = graph.add_stream("compute"), side = graph.add_stream("side");
  const PortId done = graph.add_port("summary_done", 0);
  const OpId attention = graph.add({OpKind::kAttention, compute, 0});
  const OpId summary = graph.add({OpKind::kSummarise, side, 0, false});
  const OpId other = graph.add({OpKind::kRequantise, side, 0, false});
  graph.feed(done, summary);
  graph.after(attention, done);
  graph.seal();
  graph.set_cost(attention, {.fixed = us(10)});
  graph.set_cost(summary, {.fixed = us(15)});
  graph.set_cost(other, {.fixed = us(100)});
  StepCarry carry;
  CHECK(graph.evaluate(0, {}, &carry).end == us(10));
  const StepTiming second = graph.evaluate(us(10), {}, &carry);
  CHECK(second.end == us(25));                               // the summary ended at 15
  CHECK(second.exposed == 0);                                // and is no transfer
  CHECK(graph.evaluate(us(25), {}, &carry).end == us(140));  // its second summary waited for the side stream
}
