// The common part of all policy calibrations: the scenario's model with its weights, and contexts of its
// trace. It runs the CPU engine's forward pass, whichever backend the scenario names, and ignores policies.

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
  // Errors: a model that the CPU engine does not compute; no context qualifies.
  static tl::expected<std::unique_ptr<CalibrationModel>, Errors> make(const Scenario& scenario,
                                                                      const ContextChoice& choice);

  const LlmSpec& llm() const { return weights_.llm(); }
  const ModelWeights& weights() const { return weights_; }
  const std::vector<TraceContext>& contexts() const { return contexts_; }

  struct Room {
    uint32_t rows = 0;    // additional tokens after the longest prompt
    bool hidden = false;  // also capture the inputs of the projections
  };
  // Calls `visit` for each context with its prompt captured.
  void each(const Room& room, const std::function<void(size_t index, cpu::CapturedPass*)>& visit);

  // The input of score_captured() for a context of this model. For the scenario's own scorer the weights are
  // those of cpu.scorer_weights; others are drawn from the scenario's seed, like the CPU engine's. Valid
  // during the lifetime of this object.
  cpu::ScoredContext scored(const Scenario& scenario, const kernels::ScorerDefinition& scorer, size_t index);
  // The room that the scorer needs, over all contexts.
  Room room(const Scenario& scenario, const kernels::ScorerDefinition& scorer);

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
  const std::vector<uint32_t> instruction_;  // KVzip's: the scenario's ids, or drawn
  std::map<const kernels::ScorerDefinition*, cpu::ScorerWeights> scorer_weights_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_MODEL_H_
