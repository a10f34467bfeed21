// The simulated backend's part of compose(), in builds with and without the simulator.

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "scenarios/app/compose.h"

#ifdef KVTWIN_HAVE_SIMGRID

#include "models/cost_tables/operation_cost.h"
#include "scenarios/app/compose_outcomes.h"
#include "scenarios/app/compose_partition.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/compose_retrieving.h"
#include "scenarios/app/formats.h"
#include "scenarios/load/retrieval_options.h"
#include "sim/sim_backend.h"

namespace kvtwin {
namespace {

double giga(const Figure& figure) { return figure.value / 1e9; }

Duration rounded(const Figure& figure) { return {static_cast<int64_t>(figure.value + 0.5)}; }

}  // namespace

namespace {

void set_compression(const Composed& composed, RetrievalStepSpec* graph) {
  if (!composed.compression) return;
  graph->captures = composed.compression->capture_kernels > 0;
  graph->compresses =
      composed.compression->after_layers ? CompressionPlace::kBehindLayers : CompressionPlace::kInLayers;
}

}  // namespace

RetrievalSetup make_retrieving(const Scenario& scenario, const Composed& composed) {
  RetrievalSetup out;
  const RetrievalKind kind = retrieval_traits(scenario.values.policies().retrieval()).kind;
  const uint32_t tp = scenario.values.engines().tensor_parallel();
  if (kind == RetrievalKind::kReadsAll) {
    if (composed.watcher == nullptr) return out;
    sim::GraphPricerSpec dense{.graph = {.layers = composed.llm.layers, .all_reduces = tp > 1}, .policy = {}};
    set_compression(composed, &dense.graph);
    for (size_t i = 0; i < composed.options.engines.size(); ++i)
      out.pricers.push_back(std::make_unique<sim::GraphPricer>(dense, composed.cost.get(), nullptr));
    return out;
  }
  const CoreConfig& config = composed.options.engines.front();
  const RetrievalSpec& spec = config.policies.retrieval_spec;
  const LlmSpec& llm = composed.llm;
  const RecallCopies copies = recall_copies(scenario.values);
  RetrievalGeometry geometry = retrieval_geometry(spec, copies, kind, llm, config.page_tokens);
  geometry.keeps_prefixes = config.prefix_cache && recalls(kind);
  out.prices.emplace(llm, composed.device, composed.node, tp, geometry);
  if (composed.operations) {
    const FamilyCounts ns = prices_of(*composed.operations);
    const double size = kPageUnit.of(config.page_tokens, llm.head_dim);
    const auto us = [&](Family family) { return ns[static_cast<size_t>(family)] * size / 1e3; };
    out.prices->set_measured({.page_now_us = us(Family::kPageNow),
                              .page_next_us = us(Family::kPageNext),
                              .concurrent_page_us = us(Family::kPageConcurrent),
                              .page_launched_us = us(Family::kPageLaunched)});
  }
  sim::GraphPricerSpec pricer;
  pricer.graph.kind = kind;
  pricer.graph.layers = llm.layers;
  pricer.graph.layers_dense = spec.layers_dense;
  pricer.graph.speculation = spec.speculation;
  // Tokens that arrive one by one are written to their slots directly, and so are pages that a kernel
  // recalls, and ShadowKV's values.
  pricer.graph.converts = copies.layout == HostPageLayout::kHnd && copies.copy != HostCopy::kKernel &&
                          kind != RetrievalKind::kRecallsTokens && kind != RetrievalKind::kRecallsValues;
  pricer.graph.staging_buffers = copies.staging_buffers;
  pricer.graph.keeps_prefixes = geometry.keeps_prefixes;
  pricer.graph.all_reduces = tp > 1;
  set_compression(composed, &pricer.graph);
  pricer.policy = spec;
  pricer.page_tokens = config.page_tokens;
  pricer.drops = recalls(kind) && !budget_traits(config.policies.budget).keeps_all;
  pricer.kv_heads = llm.kv_heads;
  for (size_t i = 0; i < composed.options.engines.size(); ++i) {
    out.pricers.push_back(std::make_unique<sim::GraphPricer>(pricer, composed.cost.get(), &*out.prices));
  }
  return out;
}

namespace {

SimulatedEnd::Retrieval retrieval_of(const Outcomes& outcomes, const sim::SimReport& report) {
  SimulatedEnd::Retrieval out;
  out.outcomes = outcomes.recalled_by();
  for (const sim::StepTotals& engine : report.engines) {
    out.pages_now += engine.pages_now;
    out.pages_next += engine.pages_next;
    out.heads_corrected += engine.heads_corrected;
    out.heads_chose += engine.heads_chose;
    out.pages_chosen += engine.pages_chosen;
    out.bytes_in += engine.bytes_in;
    out.bytes_out += engine.bytes_out;
    out.steps_expanded += engine.expanded;
    out.exposed.ns += engine.exposed / kTicksPerNs;
    out.hidden.ns += engine.hidden / kTicksPerNs;
  }
  return out;
}

double slowdown_of(const sim::SimReport& report) {
  double read = 0, waited = 0;
  for (const sim::StepTotals& engine : report.engines) {
    read += static_cast<double>(engine.entries_read);
    waited += static_cast<double>(engine.entries_waited);
  }
  return read > 0 ? waited / read : 1;
}

SimulatedEnd::CompressionTimes compression_of(const sim::SimReport& report) {
  constexpr double kTicksPerS = 1e9 * kTicksPerNs;
  SimulatedEnd::CompressionTimes out{.priced = true};
  for (const sim::StepTotals& engine : report.engines) {
    out.count += engine.compressions;
    for (size_t i = 0; i < out.seconds.size(); ++i)
      out.seconds[i] += static_cast<double>(engine.compression[i]) / kTicksPerS;
    out.prompt_steps_s += static_cast<double>(engine.prompts) / kTicksPerS;
    out.in_prompt_steps_s += static_cast<double>(engine.prompts_compression) / kTicksPerS;
  }
  return out;
}

// `disk`: an engine has a disk tier.
sim::PlatformSpec platform_of(const EngineKind& kind, bool disk) {
  sim::PlatformSpec out;
  const NodeSpec& node = kind.node;
  out.gpus = kind.node_gpus;
  out.sockets = std::min(node.sockets > 0 ? node.sockets : 1, kind.node_gpus);
  if (node.pcie_bytes_per_s.present()) out.pcie_gb_per_s = giga(node.pcie_bytes_per_s);
  if (node.pcie_out_bytes_per_s.present()) out.pcie_out_gb_per_s = giga(node.pcie_out_bytes_per_s);
  if (node.pcie_both_bytes_per_s.present()) out.pcie_both_gb_per_s = giga(node.pcie_both_bytes_per_s);
  if (node.copy_overhead_h2d_ns.present()) out.copy_overhead_in = rounded(node.copy_overhead_h2d_ns);
  if (node.copy_overhead_d2h_ns.present()) out.copy_overhead_out = rounded(node.copy_overhead_d2h_ns);
  if (node.host_memory_bytes_per_s.present()) out.host_memory_gb_per_s = giga(node.host_memory_bytes_per_s);
  if (node.nvlink_bytes_per_s.present()) out.nvlink_gb_per_s = giga(node.nvlink_bytes_per_s);
  if (disk) {
    out.disk_read_gb_per_s = giga(node.disk_read_bytes_per_s);
    out.disk_write_gb_per_s = giga(node.disk_write_bytes_per_s);
    out.disk_latency = rounded(node.disk_latency_ns);
  }
  if (node.nic_bytes_per_s.present()) out.nic_gb_per_s = giga(node.nic_bytes_per_s);
  return out;
}

// Lists the nodes kind by kind; engines fill a node before they use the next.
void place_on_nodes(const Composed& composed, sim::SimConfig* out) {
  uint32_t gpus_before = 0;
  const bool disk = composed.options.engines.front().pages_disk > 0;
  for (const EngineKind& kind : composed.kinds) {
    for (uint32_t node = 0; node < kind.nodes; ++node) {
      const bool first = gpus_before == 0 && node == 0;
      first ? void(out->node = platform_of(kind, disk))
            : out->node.further.push_back(platform_of(kind, disk));
    }
    const uint32_t per_node = kind.node_gpus / kind.gpus_each;
    for (uint32_t i = 0; i < kind.engines; ++i) {
      sim::SimEngine& engine = out->engines.emplace_back();
      engine.cost = kind.cost ? kind.cost.get() : composed.cost.get();
      engine.planning = composed.host_planning;
      engine.gpu_first = gpus_before + i / per_node * kind.node_gpus + i % per_node * kind.gpus_each;
      engine.gpus = kind.gpus_each;
    }
    gpus_before += kind.nodes * kind.node_gpus;
  }
}

// Bytes that a transfer copies per page; with resident pages a prefix includes its page summaries.
uint64_t transfer_bytes(const Scenario& scenario, const Composed& composed, size_t engine) {
  const uint64_t page = composed.facts[engine].page_bytes;
  const CoreConfig& config = composed.options.engines[engine];
  const RetrievalKind kind = retrieval_traits(scenario.values.policies().retrieval()).kind;
  if (!recalls(kind)) return page;
  const RetrievalSpec& spec = config.policies.retrieval_spec;
  const RetrievalGeometry geometry =
      retrieval_geometry(spec, recall_copies(scenario.values), kind, composed.llm, config.page_tokens);
  const double fraction = summary_fraction(composed.llm, geometry, spec.layers_dense);
  return page + static_cast<uint64_t>(std::llround(static_cast<double>(page) * fraction));
}

sim::SimConfig sim_config(const Scenario& scenario, const Composed& composed,
                          const RetrievalSetup& retrieving) {
  sim::SimConfig out;
  place_on_nodes(composed, &out);
  out.prefill_engines = composed.options.prefill_engines;
  for (size_t i = 0; i < out.engines.size(); ++i) {
    sim::SimEngine& engine = out.engines[i];
    engine.page_bytes = transfer_bytes(scenario, composed, i);
    engine.pages_low_bit = composed.options.engines[i].pages_int2;
    if (engine.pages_low_bit > 0)
      engine.page_bytes_low_bit = int2_page_bytes(scenario, composed.llm, engine.page_bytes);
    engine.lists_entries = lists_entries(composed.options.engines[i]);
    engine.first_step_host = {scenario.values.cost().first_step_host_ns()};
    if (composed.server && engine.first_step_host.ns == 0)
      engine.first_step_host.ns = composed.server->times.first_step_ns;
    engine.steps_in_flight_max = composed.options.engines[i].steps_in_flight_max;
    if (!retrieving.pricers.empty()) engine.pricer = retrieving.pricers[i].get();
    engine.watcher = composed.watcher;
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
  const RetrievalSetup retrieving = make_retrieving(scenario, *composed);
  sim::SimConfig config = sim_config(scenario, *composed, retrieving);
  std::optional<sim::PartitionPrice> partition;  // equal engines share memoised prices
  // Measured operations already include the uneven split.
  if (const auto spec = partition_price_spec(scenario, *composed); spec && !composed->operations)
    partition.emplace(*spec);
  for (sim::SimEngine& engine : config.engines) engine.partition = partition ? &*partition : nullptr;
  const Result<std::unique_ptr<Outcomes>> outcomes = Outcomes::make(scenario, *composed, values);
  if (!outcomes) return tl::unexpected<Error>(outcomes.error());
  (*outcomes)->attach(&config, composed->outcome_log);
  if (Result<void> ok = sim::validate_sim_config(config); !ok) {
    return make_error(scenario.where("hardware.node"), ok.error().text());
  }
  sim::SimReport report;
  SimulatedEnd out;
  out.end = sim::run_simulated(config, composed->options, client, observers, &report);
  out.retained_outcomes = (*outcomes)->retained_by();
  if (retrieving.prices) out.retrieval = retrieval_of(**outcomes, report);
  if (partition) out.attention_slowdown = slowdown_of(report);
  if (composed->compression) out.compression = compression_of(report);
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
#include "engine/methods/traits.h"
#include "scenarios/app/compose_retrieving.h"

namespace kvtwin {

bool can_simulate() { return false; }

RetrievalSetup make_retrieving(const Scenario&, const Composed&) { return {}; }

Result<SimulatedEnd> simulate(const Scenario&, Composed*, Client*, const std::vector<Observer*>&,
                              const std::vector<OutcomeSource*>&) {
  KVT_CHECK(can_simulate());
  return SimulatedEnd{};
}

}  // namespace kvtwin

#endif
