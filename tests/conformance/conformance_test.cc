// One contract for every backend. A new Backend adds its case here.

#include <doctest/doctest.h>

#include "engine/common/cpu_backend.h"
#include "tests/conformance/contract.h"
#include "tests/support/analytic_backend.h"
#include "tests/unit/sim/in_child.h"
#include "tests/unit/sim/script.h"
#ifdef KVTWIN_WITH_SCRIPT_BACKEND
#include "tests/support/script_backend.h"
#endif

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Some steps take no time, and all times are multiples of 100 ns, so that many events coincide.
class CoarseCost final : public CostModel {
 public:
  StepCost step(const StepShape& shape) override {
    const Ticks device = static_cast<Ticks>(draw({shape.decode_context_sum}) % 20) * 100 * kTicksPerNs;
    return {.device = device, .host = 0, .by_evidence = {0, device, 0, 0}};
  }
};

ContractOptions options_for(uint64_t seed) {
  return {.seed = seed,
          .engines = static_cast<uint32_t>(1 + seed % 3),
          .steps_in_flight_max = static_cast<uint32_t>(1 + seed / 3 % 2)};
}

sim::SimConfig config_for(const ContractOptions& options, CostModel* cost) {
  sim::SimConfig config;
  config.node.gpus = options.engines;
  config.node.pcie_gb_per_s = 50;
  config.node.copy_overhead_in = {options.seed % 5 == 0 ? 0 : 200};
  config.node.host_memory_gb_per_s = options.seed % 2 == 0 ? 100'000 : 60;
  for (uint32_t i = 0; i < options.engines; ++i) {
    config.engines.push_back({.cost = cost,
                              .page_bytes = 5'000,
                              .steps_in_flight_max = options.steps_in_flight_max,
                              .gpu_first = i});
  }
  return config;
}

}  // namespace

TEST_CASE("conformance: the analytic backend keeps the contract") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    CoarseCost cost;
    const sim::SimConfig config = config_for(options_for(seed), &cost);
    AnalyticBackend backend(config);
    REQUIRE(Contract(options_for(seed), &backend).check() == "");
  }
}

// Steps and copies do nothing, and a stopwatch invents their times.
class NoValues final : public OutcomeSource {
 public:
  void step(const LaunchStep&, uint32_t, DataOutcomes* values) override { values->clear(); }
  void notify(const Command&) override {}
};

TEST_CASE("conformance: the CPU engine's backend keeps the contract") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    ContractOptions options = options_for(seed);
    options.may_split = true;
    NoValues values;
    uint64_t drawn = 0;
    const auto stopwatch = [&](const std::function<void()>& work) {
      work();
      return Duration{static_cast<int64_t>(draw({seed, ++drawn}) % 20) * 100};
    };
    cpu::CpuBackend backend({std::vector<uint32_t>(options.engines, options.steps_in_flight_max)}, &values,
                            stopwatch);
    REQUIRE(Contract(options, &backend).check() == "");
  }
}

#ifdef KVTWIN_WITH_SIMGRID
TEST_CASE("conformance: the simulated backend keeps the contract") {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    CoarseCost cost;
    const sim::SimConfig config = config_for(options_for(seed), &cost);
    REQUIRE(in_child([&] {
              std::string complaints;
              sim::simulate(config, [&](Backend* backend) {
                complaints = Contract(options_for(seed), backend).check();
              });
              return complaints;
            }) == "");
  }
}
#endif

#ifdef KVTWIN_WITH_SCRIPT_BACKEND
TEST_CASE("conformance: the adversary keeps the contract") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    ContractOptions options = options_for(seed);
    options.may_split = seed % 2 == 1;
    std::vector<CoreConfig> engines(options.engines);
    for (uint32_t i = 0; i < options.engines; ++i) {
      engines[i].engine = EngineId{static_cast<uint16_t>(i)};
      engines[i].steps_in_flight_max = options.steps_in_flight_max;
    }
    ScriptBackend backend(
        {.seed = seed, .step_zero_per_100 = 20, .transfer_fails_per_100 = 10, .pieces = options.may_split},
        engines, nullptr);
    REQUIRE(Contract(options, &backend).check() == "");
  }
}
#endif
