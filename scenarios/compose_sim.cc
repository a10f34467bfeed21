// The simulated world's part of the composition root, present or not.

#include <memory>
#include <utility>
#include <vector>

#include "scenarios/compose.h"

#ifdef KVTWIN_HAVE_SIMGRID

#include "engine/policy/registry.h"
#include "sim/behaviour_retention.h"
#include "sim/sim_backend.h"

namespace kvtwin {
namespace {

double giga(const Figure& figure) { return figure.value / 1e9; }

Duration rounded(const Figure& figure) { return {static_cast<int64_t>(figure.value + 0.5)}; }

sim::SimConfig sim_config(const Scenario& scenario, const Composed& composed) {
  sim::SimConfig out;
  out.node.gpus = composed.gpus;
  out.node.sockets = composed.node.sockets > 0 ? composed.node.sockets : 1;
  const NodeSpec& node = composed.node;
  if (node.pcie_bytes_per_s.present()) out.node.pcie_gb_per_s = giga(node.pcie_bytes_per_s);
  if (node.copy_overhead_h2d_ns.present()) out.node.copy_overhead_in = rounded(node.copy_overhead_h2d_ns);
  if (node.copy_overhead_d2h_ns.present()) out.node.copy_overhead_out = rounded(node.copy_overhead_d2h_ns);
  if (node.host_memory_bytes_per_s.present())
    out.node.host_memory_gb_per_s = giga(node.host_memory_bytes_per_s);
  if (node.nvlink_bytes_per_s.present()) out.node.nvlink_gb_per_s = giga(node.nvlink_bytes_per_s);
  const uint32_t tp = scenario.values.engines().tensor_parallel();
  for (size_t i = 0; i < composed.options.engines.size(); ++i) {
    sim::SimEngine engine;
    engine.cost = composed.cost.get();
    engine.page_bytes = composed.facts[i].page_bytes;
    engine.first_step_host = {scenario.values.cost().first_step_host_ns()};
    engine.steps_in_flight_max = composed.options.engines[i].steps_in_flight_max;
    engine.gpu_first = static_cast<uint32_t>(i) * tp;
    engine.gpus = tp;
    out.engines.push_back(engine);
  }
  const std::string& fidelity = scenario.values.simulation().fidelity();
  out.fidelity = fidelity == "collapsed"  ? sim::Fidelity::kCollapsed
                 : fidelity == "expanded" ? sim::Fidelity::kExpanded
                                          : sim::Fidelity::kAuto;
  return out;
}

// Whether the world has to say what compressions keep.
bool answers_kept(const CoreConfig& config) {
  const PolicyAxes axes = make_axes(config.policies);
  return !axes.budget->keeps_all() && axes.layout->keeping() != Keeping::kRing;
}

}  // namespace

bool can_simulate() { return true; }

Result<SimulatedEnd> simulate(const Scenario& scenario, Composed* composed, Client* client,
                              const std::vector<Observer*>& observers) {
  sim::SimConfig config = sim_config(scenario, *composed);
  if (Result<void> ok = sim::validate_sim_config(config); !ok) {
    return mistake(scenario.where("hardware.node"), ok.error().text());
  }
  std::vector<std::unique_ptr<sim::RetentionSource>> sources;
  for (size_t i = 0; i < config.engines.size(); ++i) {
    if (!answers_kept(composed->options.engines[i])) continue;
    const bool profile = scenario.values.simulation().kept() == "profile";
    sources.push_back(std::make_unique<sim::RetentionSource>(
        composed->options.engines[i], profile ? sim::KeptModel::kProfile : sim::KeptModel::kFixed,
        scenario.values.seed()));
    config.engines[i].source = sources.back().get();
  }
  sim::SimReport report;
  SimulatedEnd out;
  out.end = sim::run_simulated(config, composed->options, client, observers, &report);
  std::array<double, kEvidenceKinds> ticks{};
  double sum = 0;
  for (const sim::StepTotals& engine : report.engines) {
    for (size_t kind = 0; kind < ticks.size(); ++kind) {
      ticks[kind] += static_cast<double>(engine.by_evidence[kind]);
      sum += static_cast<double>(engine.by_evidence[kind]);
    }
  }
  for (size_t kind = 0; kind < ticks.size(); ++kind) out.evidence[kind] = sum > 0 ? ticks[kind] / sum : 0;
  return out;
}

}  // namespace kvtwin

#else

#include "engine/base/check.h"

namespace kvtwin {

bool can_simulate() { return false; }

Result<SimulatedEnd> simulate(const Scenario&, Composed*, Client*, const std::vector<Observer*>&) {
  KVT_CHECK(can_simulate());
  return SimulatedEnd{};
}

}  // namespace kvtwin

#endif
