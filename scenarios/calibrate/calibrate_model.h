// What every calibration of a policy starts from: the scenario's model with its weights, and contexts of its
// trace. Runs on the CPU engine's forward pass, whatever backend the scenario names; policies play no part.

#ifndef KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_MODEL_H_
#define KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_MODEL_H_

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/cpu/captured_pass.h"
#include "engine/cpu/captured_scores.h"
#include "scenarios/calibrate/trace_contexts.h"

namespace kvtwin {

class CalibrationModel {
 public:
  // Errors: a model that the CPU engine does not compute, no context that qualifies.
  static tl::expected<std::unique_ptr<CalibrationModel>, Errors> make(const Scenario& scenario,
                                                                      const ContextChoice& choice);

  const LlmSpec& llm() const { return weights_.llm(); }
  const ModelWeights& weights() const { return weights_; }
  const std::vector<TraceContext>& contexts() const { return contexts_; }

  struct Room {
    uint32_t rows = 0;    // behind the longest prompt
    bool hidden = false;  // rows as projections see them
  };
  // Calls `visit` for each context with its prompt captured.
  void each(const Room& room, const std::function<void(size_t index, cpu::CapturedPass*)>& visit);

  // What score_captured() wants for a context of this model. Weights of scorers are those that
  // cpu.scorer_weights names for the scenario's own, others are drawn from the scenario's
  // seed, as the CPU engine's are. Valid while this lives.
  cpu::ScoredContext scored(const Scenario& scenario, kernels::ScorerKind kind, size_t index);
  // Room that the scorer needs, over all contexts.
  Room room(const Scenario& scenario, kernels::ScorerKind kind);

 private:
  CalibrationModel(ModelWeights weights, std::vector<TraceContext> contexts,
                   std::vector<uint32_t> instruction)
      : weights_(std::move(weights)),
        forward_(&weights_),
        contexts_(std::move(contexts)),
        instruction_(std::move(instruction)) {}

  Result<void> load_scorer(const Scenario& scenario);

  const ModelWeights weights_;
  cpu::Forward forward_;
  const std::vector<TraceContext> contexts_;
  const std::vector<uint32_t> instruction_;  // KVzip's, drawn: there is no tokenizer
  std::map<kernels::ScorerKind, cpu::ScorerWeights> scorer_weights_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_MODEL_H_
