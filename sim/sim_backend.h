// The simulated backend: steps priced by a cost model, copies on a simulated node.
//
// SimGrid stays behind this header. One simulation at a time per process (simgrid_adapter.h): sweeps and
// tests give each its own process.

#ifndef KVTWIN_SIM_SIM_BACKEND_H_
#define KVTWIN_SIM_SIM_BACKEND_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/runtime/backend.h"
#include "engine/runtime/driver.h"
#include "engine/runtime/outcome_source.h"
#include "models/cost/cost_model.h"
#include "sim/clock/step_clock.h"
#include "sim/platform.h"

namespace kvtwin::sim {

struct SimEngine {
  CostModel* cost = nullptr;  // of one step on all its GPUs together
  // What values decide in its steps, and how steps that move pages are priced; null: nothing, and cost alone.
  // One of each for every engine.
  OutcomeSource* source = nullptr;
  GraphPricer* pricer = nullptr;
  // What compressions keep, where no `source` says so: asked as a step is launched
  // (stored_outcome_backend.h), so that the clock need not be lazy for its sake. null: nothing, or `source`
  // answers that too (combined_source.h).
  OutcomeSource* retention = nullptr;
  StepWatcher* watcher = nullptr;  // of its steps that a pricer prices; null: nobody
  // How attention is cut into thread blocks, where heads differ in length; null: as the cost model has it.
  // Engines may share one; it is not used beside a pricer.
  PartitionPrice* partition = nullptr;
  bool lists_entries = false;  // decodes of requests with dropped slots read KV entry by KV entry (StepShape)
  uint64_t page_bytes = 0;     // of one page, on all its GPUs together
  uint32_t steps_in_flight_max = 1;  // run_simulated() takes CoreConfig's
  Duration first_step_host{};        // what its very first step costs more
  uint32_t gpu_first = 0;            // its GPUs are [gpu_first, gpu_first + gpus)
  uint32_t gpus = 1;
};

// How finely a step is simulated (sim/expanded_step.h). Steps without transfers of their own have nothing
// to gain from kExpanded and are always collapsed.
enum class Fidelity : uint8_t { kAuto, kCollapsed, kExpanded };

struct SimConfig {
  PlatformSpec node;
  std::vector<SimEngine> engines;  // in engine order
  Fidelity fidelity = Fidelity::kAuto;
  uint32_t prefill_engines = 0;  // RunOptions has the same: the others fetch KV from these
};

// Every error names its field.
Result<void> validate_sim_config(const SimConfig& config);

struct SimReport {
  std::vector<StepTotals> engines;
};

// Builds the node, runs `body` with the backend in it, and returns when it has returned.
// REQUIRES: validate_sim_config(config) found nothing wrong.
SimReport simulate(const SimConfig& config, const std::function<void(Backend*)>& body);

// kvtwin::run() in the simulated world. REQUIRES: as many engines in `config` as in `options`.
RunEnd run_simulated(const SimConfig& config, const RunOptions& options, Client* client,
                     const std::vector<Observer*>& observers, SimReport* report = nullptr);

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_SIM_BACKEND_H_
