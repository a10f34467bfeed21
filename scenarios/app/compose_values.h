// What the value-computing backends share: weights, tokens and the choice of clock.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_VALUES_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_VALUES_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/common/scorer_weights.h"
#include "engine/common/token_ids.h"
#include "engine/methods/combinations.h"
#include "engine/runtime/forced_outcomes.h"
#include "models/weights/weights.h"
#include "scenarios/app/compose.h"

namespace kvtwin {

// Fails if an engine does not compute the combination of policies (combinations.h). `engine` is its name in
// the message.
Result<void> check_combination(const Scenario& scenario, const CoreConfig& config, Computes where,
                               const char* engine);

// True if KV entries are dropped, or stored elsewhere than by position.
bool drops(const CoreConfig& config);

// True if the scorer ranks by trained weights, for which the scenario may name a file.
bool ranks_by_weights(const Scenario& scenario);
// The scorer's trained weights. Nullopt: none are named, or the scorer has none.
Result<std::optional<cpu::ScorerWeights>> scorer_weights(const Scenario& scenario, const LlmSpec& llm);

// The scenario's checkpoint, or random weights from its seed. `outline`: random matrices are not drawn yet.
Result<ModelWeights> compose_weights(const Scenario& scenario, const LlmSpec& llm, bool outline);
bool decodes_greedily(const Scenario& scenario);
// Valid while `composed` lives.
cpu::TokenIdOptions token_options(const Scenario& scenario, const Composed& composed);

// Runs `engines` (in engine order) under the scenario's clock, with the outcomes that the scenario forces.
// `copy_time`: see CpuBackendOptions.
Result<SimulatedEnd> run_values(const Scenario& scenario, Composed* composed, Client* client,
                                const std::vector<Observer*>& observers,
                                const std::vector<ForcibleSource*>& engines,
                                std::function<Duration(EngineId, TransferId)> copy_time = {});

// Fails if this build or this machine lacks what the scenario, which messages call `name`, runs on.
Result<void> check_backend(const Scenario& scenario, const std::string& name);

// Fails if this build or this machine cannot run the CUDA backend.
Result<void> check_cuda_backend(const Scenario& scenario);

// Fails with what make_cuda_backend() refuses, without computing anything.
Result<void> check_cuda_backend(const Scenario& scenario, const Composed& composed);

// Errors: as CpuEngineBackend::make; this build or machine has no CUDA (scenarios/app/compose_cuda.cc).
Result<std::unique_ptr<EngineBackend>> make_cuda_backend(const Scenario& scenario, const Composed& composed,
                                                         bool timeline);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_VALUES_H_
