// The simulated backend: steps are priced by a cost model, copies run on a simulated node.
//
// SimGrid stays behind this header. A process runs one simulation at a time (simgrid_adapter.h); sweeps and
// tests start a process for each.

#ifndef KVTWIN_SIM_SIM_BACKEND_H_
#define KVTWIN_SIM_SIM_BACKEND_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/runtime/backend.h"
#include "engine/runtime/driver.h"
#include "engine/runtime/outcome_source.h"
#include "models/cost/cost_model.h"
#include "models/cost/host_time.h"
#include "sim/clock/step_clock.h"
#include "sim/platform.h"

namespace kvtwin::sim {

struct SimEngine {
  CostModel* cost = nullptr;  // prices one step on all GPUs of the engine together
  // The outcomes of its steps, and the prices of steps that move pages. Null: its steps have no outcomes, and
  // `cost` alone prices them. One object per engine.
  OutcomeSource* source = nullptr;
  GraphPricer* pricer = nullptr;
  // What compressions retain, where `source` does not answer that: asked when a step is launched
  // (stored_outcome_backend.h), so that the clock need not be lazy. Null: nothing is compressed, or `source`
  // answers it too (combined_source.h).
  OutcomeSource* retention = nullptr;
  StepWatcher* watcher = nullptr;  // observes the steps that `pricer` prices; null: none
  // Splits of attention work over thread blocks, where heads differ in length; null: as in the cost model.
  // Engines may share one. It is not used together with a pricer.
  PartitionPrice* partition = nullptr;
  bool lists_entries = false;  // decodes of requests with dropped slots read entry by entry (StepShape)
  uint64_t page_bytes = 0;     // bytes of one page, on all GPUs of the engine together
  // Mixed precision: the first GPU pages are smaller.
  uint32_t pages_low_bit = 0;
  uint64_t page_bytes_low_bit = 0;
  uint32_t steps_in_flight_max = 1;  // run_simulated() overwrites it with CoreConfig's
  Duration first_step_host{};        // additional host time of its first step
  HostPlanning planning{};           // its copies start later by this; steps contain it in their cost
  uint32_t gpu_first = 0;            // its GPUs are [gpu_first, gpu_first + gpus)
  uint32_t gpus = 1;
};

// How finely steps are simulated (sim/expanded_step.h). Steps without transfers of their own gain nothing
// from kExpanded and are always collapsed.
enum class Fidelity : uint8_t { kAuto, kCollapsed, kExpanded };

struct SimConfig {
  PlatformSpec node;
  std::vector<SimEngine> engines;  // by EngineId
  Fidelity fidelity = Fidelity::kAuto;
  uint32_t prefill_engines = 0;  // as in RunOptions: the other engines fetch KV from these
};

// Every error names its field.
Result<void> validate_sim_config(const SimConfig& config);

struct SimReport {
  std::vector<StepTotals> engines;
};

// Builds the node, runs `body` with the backend on it, and returns when `body` has returned. REQUIRES:
// validate_sim_config(config) found nothing wrong.
SimReport simulate(const SimConfig& config, const std::function<void(Backend*)>& body);

// kvtwin::run() with the simulated backend. REQUIRES: `config` and `options` have the same number of engines.
RunEnd run_simulated(const SimConfig& config, const RunOptions& options, Client* client,
                     const std::vector<Observer*>& observers, SimReport* report = nullptr);

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_SIM_BACKEND_H_
