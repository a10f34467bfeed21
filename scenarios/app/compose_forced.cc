#include "scenarios/app/compose_forced.h"

#include <fmt/format.h>

#include "engine/methods/traits.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/load/retrieval_options.h"

namespace kvtwin {
namespace {

Result<void> check_forcible(const Scenario& scenario, const CoreConfig& config) {
  const RetrievalKind kind = retrieval_traits(config.policies.retrieval).kind;
  if (kind != RetrievalKind::kRecallsValues && kind != RetrievalKind::kRecallsTokens) return {};
  return make_error(
      scenario.where("simulation.force_outcomes"),
      fmt::format("recalls of retrieval {} cannot be forced", config.policies.retrieval),
      retrievals_of(RetrievalKind::kRecallsPages) + "; or force_outcomes: false, or --backend=sim");
}

std::string forced_outcome(const std::string& by, const ForcedOutcomes::Counts& counts) {
  if (by.empty()) return by;
  if (counts.met == counts.forced_outcome) return "forced, " + by;
  return fmt::format("forced, {}; met in {} of {}", by, counts.met, counts.forced_outcome);
}

}  // namespace

Result<std::unique_ptr<ForcedEngines>> ForcedEngines::make(const Scenario& scenario, const Composed& composed,
                                                           const std::vector<ForcibleSource*>& engines) {
  std::unique_ptr<ForcedEngines> out(new ForcedEngines());
  const CoreConfig& config = composed.options.engines.front();
  if (!backend_reports_retained(config)) out->retained_.clear();
  if (retrieval_traits(config.policies.retrieval).reads_everything()) out->recalled_.clear();
  out->sources_.assign(engines.begin(), engines.end());
  if (!scenario.values.simulation().force_outcomes() || (out->retained_.empty() && out->recalled_.empty()))
    return out;
  if (Result<void> ok = check_forcible(scenario, config); !ok) return tl::unexpected<Error>(ok.error());
  Result<std::unique_ptr<Outcomes>> outcomes = Outcomes::make(scenario, composed, {});
  if (!outcomes) return tl::unexpected<Error>(outcomes.error());
  out->outcomes_ = std::move(*outcomes);
  for (size_t i = 0; i < engines.size(); ++i)
    out->sources_[i] = &out->forced_.emplace_back(out->outcomes_->of(i), engines[i]);
  return out;
}

void ForcedEngines::prepare(const LaunchStep& launch, uint32_t offset) {
  if (outcomes_ != nullptr) forced_.at(raw(launch.engine)).prepare(launch, offset);
}

std::string ForcedEngines::retained_by() const {
  if (outcomes_ == nullptr) return retained_;
  ForcedOutcomes::Counts sum;
  for (const ForcedOutcomes& one : forced_)
    sum.forced_outcome += one.retained().forced_outcome, sum.met += one.retained().met;
  return forced_outcome(outcomes_->retained_by(), sum);
}

std::string ForcedEngines::recalled_by() const {
  if (outcomes_ == nullptr) return recalled_;
  ForcedOutcomes::Counts sum;
  for (const ForcedOutcomes& one : forced_)
    sum.forced_outcome += one.recalls().forced_outcome, sum.met += one.recalls().met;
  return forced_outcome(outcomes_->recalled_by(), sum);
}

}  // namespace kvtwin
