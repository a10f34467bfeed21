// Collapsed and expanded steps, alone and on eight GPUs that share one host memory.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "sim/expanded_step.h"
#include "tests/support/decode_step.h"
#include "tests/unit/sim/in_child.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr double kPcie = 55;  // GB/s

Ticks us(double value) { return static_cast<Ticks>(value * 1000 * kTicksPerNs + 0.5); }

// docs/design/simgrid.md#collapsing: kernels of 6, 11, 4 and 19 us per layer, times `scale`, and a recall
// per layer.
DecodeStepCosts costs_for(uint64_t recall_bytes, double scale, double launch_us = 0) {
  DecodeStepCosts costs;
  costs.qkv.fixed = us(6 * scale);
  costs.attention.fixed = us(11 * scale);
  costs.out.fixed = us(4 * scale);
  costs.ffn.fixed = us(19 * scale);
  costs.recall = {.fixed = us(2.3 + static_cast<double>(recall_bytes) / kPcie / 1e3), .bytes = recall_bytes};
  costs.launch.fixed = us(launch_us);
  return costs;
}

struct Outcome {
  double step_us = 0;     // mean over GPUs and steps
  double exposed_us = 0;  // of the last step of the first GPU
};

struct SimulationSetup {
  DecodeStepSpec spec{.layers = 32, .recall = RecallTiming::kSameStep};
  uint64_t recall_bytes = 0;
  uint32_t gpus = 1;
  uint32_t steps = 1;
  double memory_gb_per_s = 100'000;
  bool desynchronised = false;  // GPUs differ in speed by up to 1.3 %
  double launch_us = 0;

  double scale(uint32_t gpu) const { return desynchronised ? 1 + 0.0037 * (gpu - 0.5 * (gpus - 1)) : 1; }
};

Outcome collapsed(const SimulationSetup& scene, double gb_per_s = kPcie) {
  Outcome result;
  for (uint32_t gpu = 0; gpu < scene.gpus; ++gpu) {
    DecodeStep step = make_decode_step(scene.spec);
    DecodeStepCosts costs = costs_for(scene.recall_bytes, scene.scale(gpu), scene.launch_us);
    costs.recall.fixed = us(2.3 + static_cast<double>(scene.recall_bytes) / gb_per_s / 1e3);
    step.set_costs(costs);
    StepCarry carry;
    StepTiming timing;
    for (uint32_t i = 0; i < scene.steps; ++i) timing = step.graph.evaluate(timing.end, {}, &carry);
    result.step_us += static_cast<double>(timing.end) / kTicksPerNs / 1000 / scene.steps / scene.gpus;
    if (gpu == 0) result.exposed_us = static_cast<double>(timing.exposed) / kTicksPerNs / 1000;
  }
  return result;
}

Outcome expanded(const SimulationSetup& scene) {
  const std::string text = in_child([&] {
    sim::PlatformSpec node;
    node.gpus = scene.gpus;
    node.pcie_gb_per_s = kPcie;
    node.host_memory_gb_per_s = scene.memory_gb_per_s;
    sim::SimGrid grid(node);
    sim::ExpandedSteps steps(&grid);
    std::vector<DecodeStep> graphs(scene.gpus);
    std::vector<uint32_t> left(scene.gpus, scene.steps);
    double sum = 0, exposed = 0;
    std::function<void(uint32_t)> start = [&](uint32_t gpu) {
      steps.start(gpu, {}, [&, gpu](const sim::ExpandedSteps::Timing& timing) {
        if (--left[gpu] > 0) return start(gpu);
        sum += timing.end_ns;
        if (gpu == 0) exposed = timing.exposed_ns;
      });
    };
    for (uint32_t gpu = 0; gpu < scene.gpus; ++gpu) {
      graphs[gpu] = make_decode_step(scene.spec);
      graphs[gpu].set_costs(costs_for(scene.recall_bytes, scene.scale(gpu), scene.launch_us));
      steps.add_engine(&graphs[gpu].graph, {gpu, {grid.host_to_gpu(0, gpu)}, {grid.gpu_to_host(gpu, 0)}});
    }
    grid.run([&] {
      for (uint32_t gpu = 0; gpu < scene.gpus; ++gpu) grid.at(0, [&start, gpu] { start(gpu); });
    });
    return fmt::format("{} {}", sum / scene.gpus / scene.steps / 1000, exposed / 1000);
  });
  Outcome result;
  REQUIRE(std::sscanf(text.c_str(), "%lf %lf", &result.step_us, &result.exposed_us) == 2);
  return result;
}

double utilisation(const SimulationSetup& scene) {
  const auto step = static_cast<Ticks>(collapsed(scene).step_us * 1000 * kTicksPerNs);
  const std::vector<sim::LinkDemand> demands(scene.gpus, {scene.recall_bytes * scene.spec.layers, step});
  return sim::predicted_utilisation(demands, scene.memory_gb_per_s);
}

}  // namespace

TEST_CASE("expanded: alone on its links a step takes the length of its longest path") {
  struct Case {
    RecallTiming recall;
    uint64_t bytes;
    double launch_us, want_us;
  };
  for (const Case& one :
       {Case{RecallTiming::kSameStep, 1'100'000, 0, 1296.3},
        Case{RecallTiming::kSameStep, 5'000'000, 0, 3016.690909},
        Case{RecallTiming::kSameStep, 1'100'000, 12, 0}, Case{RecallTiming::kNextStep, 1'100'000, 0, 0},
        Case{RecallTiming::kNextStep, 5'000'000, 0, 0}, Case{RecallTiming::kNone, 0, 0, 1280}}) {
    for (const uint32_t steps : {1u, 7u}) {
      CAPTURE(one.bytes);
      CAPTURE(steps);
      SimulationSetup scene{.recall_bytes = one.bytes, .steps = steps, .launch_us = one.launch_us};
      scene.spec.recall = one.recall;
      scene.spec.launch_per_kernel = one.launch_us > 0;
      const Outcome want = collapsed(scene), got = expanded(scene);
      CHECK(got.step_us == doctest::Approx(want.step_us).epsilon(1e-8));
      CHECK(got.exposed_us == doctest::Approx(want.exposed_us).epsilon(1e-6));
      if (one.want_us > 0 && steps == 1) CHECK(got.step_us == doctest::Approx(one.want_us).epsilon(1e-8));
    }
  }
}

TEST_CASE("expanded: below 60 % of the host memory it agrees with collapsed within 1 %, above it does not") {
  struct Row {
    uint64_t bytes;
    double simgrid_us;  // docs/design/simgrid.md#collapsing, desynchronised, full simulation
  };
  for (const Row& row :
       {Row{300'000, 1281.8}, Row{600'000, 1288.1}, Row{1'100'000, 1409.1}, Row{2'000'000, 2560.4}}) {
    CAPTURE(row.bytes);
    const SimulationSetup scene{
        .recall_bytes = row.bytes, .gpus = 8, .steps = 200, .memory_gb_per_s = 200, .desynchronised = true};
    const double full = expanded(scene).step_us, alone = collapsed(scene).step_us;
    MESSAGE(fmt::format(
        "{} bytes: utilisation {:.2f}, expanded {:.1f} us, collapsed {:.1f} us ({:+.1f} %), at fair share "
        "{:.1f}",
        row.bytes, utilisation(scene), full, alone, 100 * (alone / full - 1), collapsed(scene, 25).step_us));
    CHECK(full == doctest::Approx(row.simgrid_us).epsilon(0.005));
    const auto rule = sim::choose_fidelity(sim::Fidelity::kAuto, true, utilisation(scene));
    if (rule == sim::Fidelity::kCollapsed) {
      CHECK(alone == doctest::Approx(full).epsilon(0.01));
    } else {
      CHECK(alone < full * 0.95);
      CHECK(collapsed(scene, 25).step_us > full);
    }
    CHECK((rule == sim::Fidelity::kCollapsed) == (row.bytes <= 600'000));
  }
}

TEST_CASE("expanded: synchronised GPUs get exactly their fair fraction") {
  for (const uint64_t bytes : {300'000u, 1'100'000u, 2'000'000u}) {
    CAPTURE(bytes);
    const SimulationSetup scene{.recall_bytes = bytes, .gpus = 8, .steps = 20, .memory_gb_per_s = 200};
    CHECK(expanded(scene).step_us == doctest::Approx(collapsed(scene, 25).step_us).epsilon(1e-6));
  }
}

TEST_CASE(
    "expanded: below 60 % collapsed agrees on one GPU and on eight, for any recalled bytes and timing") {
  for (const RecallTiming recall : {RecallTiming::kSameStep, RecallTiming::kNextStep}) {
    for (const uint32_t gpus : {1u, 8u}) {
      for (const double fraction : {0.2, 0.4, 0.58}) {
        SimulationSetup scene{
            .gpus = gpus, .steps = 60, .memory_gb_per_s = gpus == 1 ? 40.0 : 200.0, .desynchronised = true};
        scene.spec.recall = recall;
        scene.recall_bytes = static_cast<uint64_t>(fraction * 40e3 * scene.memory_gb_per_s / gpus);
        CAPTURE(gpus);
        CAPTURE(fraction);
        CHECK(utilisation(scene) < 0.6);
        CHECK(collapsed(scene).step_us == doctest::Approx(expanded(scene).step_us).epsilon(0.01));
      }
    }
  }
}

TEST_CASE("expanded: the rule selects it only where transfers share a link") {
  using sim::Fidelity;
  CHECK(sim::choose_fidelity(Fidelity::kAuto, true, 0.59) == Fidelity::kCollapsed);
  CHECK(sim::choose_fidelity(Fidelity::kAuto, true, 0.61) == Fidelity::kExpanded);
  CHECK(sim::choose_fidelity(Fidelity::kExpanded, true, 0) == Fidelity::kExpanded);
  CHECK(sim::choose_fidelity(Fidelity::kExpanded, false, 5) == Fidelity::kCollapsed);
  CHECK(sim::choose_fidelity(Fidelity::kCollapsed, true, 5) == Fidelity::kCollapsed);
}
