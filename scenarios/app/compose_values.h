// What the backends that compute values have in common: weights, tokens, and who keeps the clock.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_VALUES_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_VALUES_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/common/scorer_weights.h"
#include "engine/common/token_ids.h"
#include "engine/runtime/forced_outcomes.h"
#include "models/weights/weights.h"
#include "scenarios/app/compose.h"

namespace kvtwin {

// What an engine computes of one axis. The rest is decided and priced, but by the simulator alone.
struct AxisComputed {
  const char* axis;
  std::string chosen;
  std::vector<std::string> computed;
};
// `engine` is what the message calls it.
Result<void> check_axes(const Scenario& scenario, const char* engine, const std::vector<AxisComputed>& axes);

// KV entries are dropped, or lie elsewhere than by position.
bool drops(const CoreConfig& config);

// Whether the scorer ranks by weights of its own, which the scenario may name a file of.
bool ranks_by_weights(const Scenario& scenario);
// What the scorer was trained for. Nullopt: nobody trained any, or the scorer has none.
Result<std::optional<cpu::ScorerWeights>> scorer_weights(const Scenario& scenario, const LlmSpec& llm);

// The scenario's checkpoint, or random weights of its seed. `outline`: random matrices are not drawn yet.
Result<ModelWeights> compose_weights(const Scenario& scenario, const LlmSpec& llm, bool outline);
bool decodes_greedily(const Scenario& scenario);
// Valid while `composed` lives.
cpu::TokenIdOptions token_options(const Scenario& scenario, const Composed& composed);

// `engines` in engine order, told what the scenario imposes, under its clock. `copy_time`: CpuBackendOptions.
Result<SimulatedEnd> run_values(const Scenario& scenario, Composed* composed, Client* client,
                                const std::vector<Observer*>& observers,
                                const std::vector<ForcibleSource*>& engines,
                                std::function<Duration(EngineId, TransferId)> copy_time = {});

// This build or this machine has no CUDA world.
Result<void> check_cuda_backend(const Scenario& scenario);

// What make_cuda_backend() refuses without having computed anything.
Result<void> check_cuda_backend(const Scenario& scenario, const Composed& composed);

// Errors: as CpuEngineBackend::make; this build or this machine has no CUDA (scenarios/app/compose_cuda.cc).
Result<std::unique_ptr<EngineBackend>> make_cuda_backend(const Scenario& scenario, const Composed& composed,
                                                         bool timeline);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_VALUES_H_
