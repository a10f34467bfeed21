#include "scenarios/calibrate/calibrate_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/prng.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/compose_values.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {

namespace {

// The scenario without settings that a dense pass does not use: policies, which must fit each other, and
// memory.
Scenario dense_scenario(const Scenario& scenario) {
  Scenario out = scenario;
  *out.values.mutable_policies() = default_scenario("").policies();
  out.values.mutable_policies()->set_placement("gpu");
  out.values.mutable_simulation()->set_retained("fixed");
  out.values.mutable_memory()->set_host_bytes(0);
  out.values.mutable_memory()->set_gpu_pages(1u << 20);
  out.values.mutable_memory()->set_reserved_pages(0);
  out.values.mutable_replay()->set_oversized("reject");
  return out;
}

}  // namespace

tl::expected<std::unique_ptr<CalibrationModel>, Errors> CalibrationModel::make(const Scenario& scenario,
                                                                               const ContextChoice& choice) {
  tl::expected<Composed, Errors> composed = compose(dense_scenario(scenario));
  if (!composed) return tl::unexpected(std::move(composed.error()));
  Result<ModelWeights> weights = compose_weights(scenario, composed->llm, false);
  if (!weights) return tl::unexpected(Errors{weights.error()});
  Result<std::vector<TraceContext>> contexts = trace_contexts(scenario, &*composed, choice);
  if (!contexts) return tl::unexpected(Errors{contexts.error()});
  std::vector<uint32_t> instruction;
  const uint32_t rows = scorer_spec(scenario.values.policies()).repeat_instruction;
  for (const uint32_t id : scenario.values.cpu().repeat_instruction()) instruction.push_back(id);
  for (uint32_t i = 0; instruction.size() < rows; ++i) {
    const uint64_t bits = draw({scenario.values.seed(), UINT64_MAX - 1, i});
    instruction.push_back(static_cast<uint32_t>(bits % composed->llm.vocab));
  }
  std::unique_ptr<CalibrationModel> out(
      new CalibrationModel(std::move(*weights), std::move(*contexts), std::move(instruction)));
  if (Result<void> ok = out->load_scorer(scenario); !ok) return tl::unexpected(Errors{ok.error()});
  return out;
}

// Loads the trained weights of the scenario's own scorer, if it names a file.
Result<void> CalibrationModel::load_scorer(const Scenario& scenario) {
  const std::string& written = scenario.values.cpu().scorer_weights();
  const kernels::ScorerDefinition& scorer = *score_spec(scenario.values).scorer;
  if (written.empty()) return {};
  if (scorer.weights == kernels::TrainedWeights::kNone) {
    return make_error(scenario.where("cpu.scorer_weights"),
                      fmt::format("scorer \"{}\" has no weights", scenario.values.policies().scorer()),
                      "\"\", or scorer fastkvzip, trimkv or judge_q");
  }
  const uint32_t rows = captured_queries("judge_q", scorer_spec(scenario.values.policies()));
  Result<cpu::ScorerWeights> loaded = cpu::ScorerWeights::load(scorer, llm(), rows, scenario.file(written));
  if (!loaded) return tl::unexpected<Error>(loaded.error());
  scorer_weights_.emplace(&scorer, std::move(*loaded));
  return {};
}

void CalibrationModel::each(const Room& room, const std::function<void(size_t, cpu::CapturedPass*)>& visit) {
  size_t longest = 0;
  for (const TraceContext& context : contexts_) longest = std::max(longest, context.prompt.size());
  cpu::CapturedPass pass(&forward_, static_cast<uint32_t>(longest) + room.rows, room.hidden);
  for (size_t i = 0; i < contexts_.size(); ++i) {
    pass.truncate(0);
    pass.extend(contexts_[i].prompt);
    visit(i, &pass);
  }
}

cpu::ScoredContext CalibrationModel::scored(const Scenario& scenario, const kernels::ScorerDefinition& scorer,
                                            size_t index) {
  const ScorerSpec work = scorer_spec(scenario.values.policies());
  cpu::ScoredContext out;
  out.tokens = contexts_[index].prompt;
  out.query = contexts_[index].spans.query;
  out.instruction = instruction_;
  out.repeat_tokens = work.repeat_tokens, out.repeat_tail = work.repeat_tail;
  out.weights = &weights_;
  if (scorer.weights == kernels::TrainedWeights::kNone) return out;
  const auto [at, is_new] = scorer_weights_.try_emplace(&scorer);
  if (is_new) {
    const uint32_t rows = captured_queries("judge_q", work);
    at->second = cpu::ScorerWeights::drawn(scorer, llm(), rows, scenario.values.seed());
  }
  out.scorer_weights = &at->second;
  return out;
}

CalibrationModel::Room CalibrationModel::room(const Scenario& scenario,
                                              const kernels::ScorerDefinition& scorer) {
  Room out{0, scorer.captures_any(kernels::capture::kHidden)};
  for (size_t i = 0; i < contexts_.size(); ++i)
    out.rows = std::max(out.rows, cpu::probe_tokens_max(scorer, scored(scenario, scorer, i), llm().hidden));
  return out;
}

}  // namespace kvtwin
