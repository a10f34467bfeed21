#include "scenarios/compose_imposed.h"

#include <fmt/format.h>

#include "scenarios/compose_parts.h"
#include "scenarios/retrieval_options.h"

namespace kvtwin {
namespace {

Result<void> check_imposable(const Scenario& scenario, const CoreConfig& config) {
  const RetrievalMethod method = retrieval_method(config.policies.retrieval);
  if (method != RetrievalMethod::kShadowkv && method != RetrievalMethod::kInfinigen) return {};
  return mistake(
      scenario.where("simulation.impose"),
      fmt::format("what retrieval {} recalls cannot be imposed on an engine", config.policies.retrieval),
      "freekv and arkvale can be told; or impose: false, or --world=sim");
}

std::string imposed(const std::string& by, const ImposedSource::Counts& counts) {
  if (by.empty()) return by;
  if (counts.met == counts.imposed) return "imposed, " + by;
  return fmt::format("imposed, {}; met in {} of {}", by, counts.met, counts.imposed);
}

}  // namespace

Result<std::unique_ptr<Imposed>> Imposed::make(const Scenario& scenario, const Composed& composed,
                                               const std::vector<ImposableSource*>& engines) {
  std::unique_ptr<Imposed> out(new Imposed());
  const CoreConfig& config = composed.options.engines.front();
  if (!world_says_kept(config)) out->kept_.clear();
  if (config.policies.retrieval == "all") out->recalled_.clear();
  out->sources_.assign(engines.begin(), engines.end());
  if (!scenario.values.simulation().impose() || (out->kept_.empty() && out->recalled_.empty())) return out;
  if (Result<void> ok = check_imposable(scenario, config); !ok) return tl::unexpected<Mistake>(ok.error());
  Result<std::unique_ptr<Outcomes>> outcomes = Outcomes::make(scenario, composed, {});
  if (!outcomes) return tl::unexpected<Mistake>(outcomes.error());
  out->outcomes_ = std::move(*outcomes);
  for (size_t i = 0; i < engines.size(); ++i)
    out->sources_[i] = &out->told_.emplace_back(out->outcomes_->of(i), engines[i]);
  return out;
}

void Imposed::prepare(const LaunchStep& launch, uint32_t offset) {
  if (outcomes_ != nullptr) told_.at(raw(launch.engine)).prepare(launch, offset);
}

std::string Imposed::kept_by() const {
  if (outcomes_ == nullptr) return kept_;
  ImposedSource::Counts sum;
  for (const ImposedSource& one : told_) sum.imposed += one.kept().imposed, sum.met += one.kept().met;
  return imposed(outcomes_->kept_by(), sum);
}

std::string Imposed::recalled_by() const {
  if (outcomes_ == nullptr) return recalled_;
  ImposedSource::Counts sum;
  for (const ImposedSource& one : told_) sum.imposed += one.recalls().imposed, sum.met += one.recalls().met;
  return imposed(outcomes_->recalled_by(), sum);
}

}  // namespace kvtwin
