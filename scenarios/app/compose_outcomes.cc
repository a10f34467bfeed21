#include "scenarios/app/compose_outcomes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/regular_file.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/traits.h"
#include "engine/recorder/recorder_log.h"
#include "models/files/textproto.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/formats.h"
#include "scenarios/load/retrieval_options.h"
#include "sim/behaviour/behaviour_retention.h"
#include "sim/behaviour/behaviour_retrieval.h"
#include "sim/behaviour/combined_source.h"

namespace kvtwin {
namespace {

// REQUIRES: compose() accepted the scenario, and the profile's file has not changed since.
sim::RetrievalBehaviour behaviour_of(const Scenario& scenario, const LlmSpec& llm,
                                     const RetrievalSpec& spec) {
  const v1::Scenario& values = scenario.values;
  const v1::RetrievalBehaviour& in = values.simulation().retrieval();
  sim::RetrievalBehaviour out;
  out.seed = values.seed();
  out.miss_q32 = ratio_q32(in.miss_rate());
  out.correction_q32 = {in.outcomes() == "profile" ? sim::profiled_correction_q32(spec.tau_q32)
                                                   : ratio_q32(in.correction_rate())};
  if (in.correction_rate_by_layer_size() > 0) out.correction_q32.clear();
  for (const double rate : in.correction_rate_by_layer()) out.correction_q32.push_back(ratio_q32(rate));
  const Result<std::optional<RecallProfile>> profile = load_recall_profile(scenario, llm);
  if (!profile || !*profile) return out;
  out.correction_q32.clear();
  const double tau = static_cast<double>(spec.tau_q32) / static_cast<double>(kOneQ32);
  for (uint32_t l = 0; l < llm.layers; ++l) {
    out.correction_q32.push_back(ratio_q32((*profile)->corrections(l, tau)));
    out.miss_by_layer_q32.push_back(ratio_q32((*profile)->miss_rate[l]));
  }
  return out;
}

// Request numbers from the log in the same folder as the outcomes file `path`.
Result<RequestNumbers> numbers_beside(const std::string& path) {
  const std::string log_path = (std::filesystem::path(path).parent_path() / "log.binpb").string();
  const Result<std::string> bytes = read_text_file(log_path, SIZE_MAX);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  const Result<Log> log = read_log(log_path, *bytes);
  if (!log) return tl::unexpected<Error>(log.error());
  return RequestNumbers(*log);
}

// The recording of another run, checked against this run's engines.
Result<RecordedOutcomes> read_record(const Scenario& scenario, const Composed& composed) {
  const std::string path = recorded_outcomes_file(scenario);
  if (Result<void> ok = check_regular_file(path); !ok) return tl::unexpected<Error>(ok.error());
  std::ifstream in(path, std::ios::binary);
  const std::string where = scenario.where("simulation.recorded_run");
  if (!in) {
    return make_error(where, "\"" + path + "\" cannot be opened",
                      "a run with --record that compresses or retrieves writes it");
  }
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  Result<RecordedOutcomes> record = read_outcomes(path, bytes, [&] { return numbers_beside(path); });
  if (!record) return record;
  const auto check = [&](const char* what, size_t recorded, size_t here) -> Result<void> {
    if (recorded == 0 || recorded == here) return {};
    return make_error(where, fmt::format("was recorded with {} {}, this run has {}", recorded, what, here),
                      "record a run of the same model, engines and head groups");
  };
  if (Result<void> ok = check("engines", record->engines.size(), composed.options.engines.size()); !ok)
    return tl::unexpected<Error>(ok.error());
  for (size_t i = 0; i < record->engines.size(); ++i) {
    const RecordedOutcomes::Engine& engine = record->engines[i];
    if (Result<void> ok = check("layers", engine.layers, composed.llm.layers); !ok)
      return tl::unexpected<Error>(ok.error());
    const uint32_t groups = make_groups(composed.options.engines[i].policies).groups();
    if (Result<void> ok = check("head groups", engine.groups, groups); !ok)
      return tl::unexpected<Error>(ok.error());
  }
  return record;
}

// The fractions that the profile's contexts retained, by context and head. policy_set() has checked the
// profile.
std::vector<Fraction> contexts_of(const Scenario& scenario) {
  const v1::BudgetOptions& budget = scenario.values.policies().budget_options();
  Errors none;
  const auto profile = load_retention(scenario, "policies.budget_options.profile", budget.profile(), &none);
  KVT_CHECK(profile.has_value());
  std::vector<double> retained = profile->samples;
  const size_t heads = profile->heads();
  for (size_t first = 0; budget.relative() && first + heads <= retained.size(); first += heads) {
    const auto begin = retained.begin() + static_cast<ptrdiff_t>(first),
               end = begin + static_cast<ptrdiff_t>(heads);
    const double mean = std::accumulate(begin, end, 0.0) / static_cast<double>(heads);
    std::for_each(begin, end, [mean](double& fraction) { fraction = mean > 0 ? fraction / mean : 1; });
  }
  std::vector<Fraction> out;
  for (const double fraction : retained)
    out.push_back(static_cast<Fraction>(std::llround(fraction * 0x1p32)));
  return out;
}

}  // namespace

Result<std::unique_ptr<Outcomes>> Outcomes::make(const Scenario& scenario, const Composed& composed,
                                                 const std::vector<OutcomeSource*>& values) {
  std::unique_ptr<Outcomes> out(new Outcomes());
  const CoreConfig& config = composed.options.engines.front();
  const v1::Simulation& simulation = scenario.values.simulation();
  if (backend_reports_retained(config)) out->retained_ = simulation.retained();
  if (!retrieval_traits(config.policies.retrieval).reads_everything())
    out->recalled_ = simulation.retrieval().outcomes();
  if (!values.empty()) {
    for (OutcomeSource* source : values) out->engines_.push_back({source, nullptr});
    if (!out->retained_.empty()) out->retained_ = "natural";
    if (!out->recalled_.empty()) out->recalled_ = "natural";
    return out;
  }
  if (out->retained_ == "recorded" || out->recalled_ == "recorded") {
    Result<RecordedOutcomes> record = read_record(scenario, composed);
    if (!record) return tl::unexpected<Error>(record.error());
    out->record_ = std::move(*record);
  }
  for (size_t i = 0; i < composed.options.engines.size(); ++i) out->add_engine(scenario, composed, i);
  return out;
}

void Outcomes::add_engine(const Scenario& scenario, const Composed& composed, size_t engine) {
  const CoreConfig& config = composed.options.engines[engine];
  const PolicySet& set = config.policies;
  std::vector<OutcomeSource*> models;
  if (!recalled_.empty()) {
    models.push_back(own(std::make_unique<sim::RetrievalSource>(
        behaviour_of(scenario, composed.llm, set.retrieval_spec), retrieval_traits(set.retrieval).kind,
        set.retrieval_spec, config.page_tokens, composed.llm.layers, composed.llm.kv_heads)));
  }
  if (!retained_.empty()) {
    const auto model = retained_ == "profile"    ? sim::RetentionModel::kProfile
                       : retained_ == "contexts" ? sim::RetentionModel::kContexts
                                                 : sim::RetentionModel::kFixed;
    models.push_back(own(std::make_unique<sim::RetentionSource>(
        config, model, scenario.values.seed(),
        retained_ == "contexts" ? contexts_of(scenario) : std::vector<Fraction>())));
  }
  const sim::RecordedParts parts{.retained = retained_ == "recorded", .recalls = recalled_ == "recorded"};
  if (models.size() == 2) models = {own(std::make_unique<sim::CombinedSource>(models))};
  if (parts.retained || parts.recalls) {
    auto source = std::make_unique<sim::RecordedSource>(&record_, engine, parts, models.front());
    recorded_.push_back(source.get());
    engines_.push_back({own(std::move(source)), nullptr});
  } else if (recalled_.empty()) {
    engines_.push_back({nullptr, models.empty() ? nullptr : models.front()});
  } else {
    engines_.push_back({models.front(), nullptr});
  }
}

void Outcomes::attach(sim::SimConfig* config, OutcomeLog* log) const {
  for (size_t i = 0; i < engines_.size(); ++i) {
    const auto watched = [&](OutcomeSource* source) {
      return source == nullptr || log == nullptr ? source : log->watch(source);
    };
    config->engines[i].source = watched(engines_[i].source);
    config->engines[i].retention = watched(engines_[i].retention);
  }
}

std::string Outcomes::said_by(const std::string& outcomes, const sim::RecordedSource::Counts& counts) const {
  if (outcomes != "recorded" || counts.found == counts.asked) return outcomes;
  return fmt::format("recorded ({} of {}; the others fixed)", counts.found, counts.asked);
}

std::string Outcomes::retained_by() const {
  sim::RecordedSource::Counts counts;
  for (const sim::RecordedSource* source : recorded_) {
    counts.asked += source->retained().asked;
    counts.found += source->retained().found;
  }
  return said_by(retained_, counts);
}

std::string Outcomes::recalled_by() const {
  sim::RecordedSource::Counts counts;
  for (const sim::RecordedSource* source : recorded_) {
    counts.asked += source->recalls().asked;
    counts.found += source->recalls().found;
  }
  return said_by(recalled_, counts);
}

}  // namespace kvtwin
