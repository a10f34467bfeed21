// The simulated world's part of the composition root, present or not.

#include <utility>

#include "scenarios/compose.h"

#ifdef KVTWIN_HAVE_SIMGRID

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

}  // namespace

bool can_simulate() { return true; }

Result<SimulatedEnd> simulate(const Scenario& scenario, Composed* composed, Client* client,
                              const std::vector<Observer*>& observers,
                              const std::vector<OutcomeSource*>& values) {
  const sim::SimConfig config = sim_config(scenario, *composed);
  if (!values.empty()) {
    return mistake(scenario.where("clock"), "the simulator of this build asks nobody for values",
                   "use --clock=wall");
  }
  if (Result<void> ok = sim::validate_sim_config(config); !ok) {
    return mistake(scenario.where("hardware.node"), ok.error().text());
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

Result<SimulatedEnd> simulate(const Scenario&, Composed*, Client*, const std::vector<Observer*>&,
                              const std::vector<OutcomeSource*>&) {
  KVT_CHECK(can_simulate());
  return SimulatedEnd{};
}

}  // namespace kvtwin

#endif
