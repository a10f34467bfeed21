#include "scenarios/load/retrieval_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/methods/traits.h"
#include "scenarios/load/names.h"

namespace kvtwin {
namespace {

constexpr NameTable<GroupPooling, 6> kPoolings{{{{"mean_softmax", GroupPooling::kMeanS},
                                                 {"max_softmax", GroupPooling::kMaxS},
                                                 {"mean_score", GroupPooling::kMeanQk},
                                                 {"max_score", GroupPooling::kMaxQk},
                                                 {"mean_query", GroupPooling::kMeanQ},
                                                 {"max_query", GroupPooling::kMaxQ}}}};
constexpr NameTable<PageSummary, 3> kSummaries{
    {{{"min_max", PageSummary::kMinMax}, {"cuboid", PageSummary::kCuboid}, {"mean", PageSummary::kMean}}}};
constexpr NameTable<ScoreScale, 2> kScales{
    {{{"one", ScoreScale::kOne}, {"inverse_sqrt", ScoreScale::kInverseSqrt}}}};
constexpr NameTable<HostPageLayout, 2> kLayouts{
    {{{"hnd", HostPageLayout::kHnd}, {"nhd", HostPageLayout::kNhd}}}};
constexpr NameTable<HostCopy, 3> kCopies{
    {{{"strided", HostCopy::kStrided}, {"each_piece", HostCopy::kEachPiece}, {"kernel", HostCopy::kKernel}}}};

v1::RetrievalOptions options_from(const RetrievalSpec& spec, const RecallCopies& copies) {
  v1::RetrievalOptions out;
  out.set_budget_tokens(spec.budget_tokens);
  out.set_sink_tokens(spec.sink_tokens);
  out.set_window_tokens(spec.window_tokens);
  out.set_extra_tokens(spec.extra_tokens);
  out.set_layers_dense(spec.layers_dense);
  out.set_tau(std::round(static_cast<double>(spec.tau_q32) / static_cast<double>(kOneQ32) * 1e6) / 1e6);
  out.set_speculation(spec.speculation);
  out.set_pooling(std::string(kPoolings.name(spec.pooling)));
  out.set_summary(std::string(kSummaries.name(spec.summary)));
  out.set_scale(std::string(kScales.name(spec.scale)));
  out.set_host_layout(std::string(kLayouts.name(copies.layout)));
  out.set_host_copy(std::string(kCopies.name(copies.copy)));
  out.set_staging_buffers(copies.staging_buffers);
  out.set_rank(spec.rank);
  out.set_columns(std::round(static_cast<double>(spec.columns_q32) / static_cast<double>(kOneQ32) * 1e6) /
                  1e6);
  return out;
}

}  // namespace

uint64_t ratio_q32(double value) {
  return static_cast<uint64_t>(std::llround(value * static_cast<double>(kOneQ32)));
}

void resolve_retrieval(v1::Scenario* scenario) {
  v1::Policies* const policies = scenario->mutable_policies();
  const bool reads_all = retrieval_traits(policies->retrieval()).reads_everything();
  v1::RetrievalOptions resolved =
      options_from(retrieval_defaults(policies->retrieval()), recall_copies(policies->retrieval()));
  if (reads_all) resolved.Clear();
  resolved.MergeFrom(policies->retrieval_options());
  if (!reads_all || policies->has_retrieval_options()) {
    *policies->mutable_retrieval_options() = resolved;
  }
  if (reads_all && !scenario->simulation().has_retrieval()) return;
  v1::RetrievalBehaviour* const behaviour = scenario->mutable_simulation()->mutable_retrieval();
  if (!behaviour->has_outcomes()) behaviour->set_outcomes("fixed");
  if (!behaviour->has_miss_rate()) behaviour->set_miss_rate(0.1);
  if (!behaviour->has_correction_rate()) behaviour->set_correction_rate(0.2);
}

void check_retrieval(const v1::Scenario& scenario, const InvalidField& problem) {
  const std::string options_field = "policies.retrieval_options";
  if (retrieval_traits(scenario.policies().retrieval()).reads_everything()) {
    if (scenario.policies().has_retrieval_options()) {
      problem(options_field, "retrieval all has no options",
              "choose a retrieval (kvtwin list policies), or remove the options");
    }
    return;
  }
  const v1::RetrievalOptions& options = scenario.policies().retrieval_options();
  const auto choice = [&](const char* name, const std::string& value, const std::vector<std::string>& known) {
    if (std::find(known.begin(), known.end(), value) != known.end()) return;
    problem(options_field + "." + name, fmt::format("{} is \"{}\"", name, value),
            fmt::format("one of: {}", fmt::join(known, ", ")));
  };
  choice("pooling", options.pooling(), kPoolings.names());
  choice("summary", options.summary(), kSummaries.names());
  choice("scale", options.scale(), kScales.names());
  choice("host_layout", options.host_layout(), kLayouts.names());
  choice("host_copy", options.host_copy(), kCopies.names());
  const auto range = [&](const std::string& field, double value, double low, double high) {
    if (value >= low && value <= high) return;
    problem(field, fmt::format("{} is {}", field.substr(field.rfind('.') + 1), value),
            fmt::format("from {} to {}", low, high));
  };
  range(options_field + ".tau", options.tau(), -2, 2);
  range(options_field + ".columns", options.columns(), 0, 1);
  range(options_field + ".staging_buffers", options.staging_buffers(), 1, 2);
  range(options_field + ".rank", options.rank(), 0, 65536);
  const v1::RetrievalBehaviour& behaviour = scenario.simulation().retrieval();
  if (behaviour.outcomes() != "fixed" && behaviour.outcomes() != "profile" &&
      behaviour.outcomes() != "recorded") {
    problem("simulation.retrieval.outcomes", fmt::format("outcomes is \"{}\"", behaviour.outcomes()),
            "one of: fixed, profile, recorded");
  }
  if (!behaviour.profile().empty() && behaviour.outcomes() != "profile") {
    problem("simulation.retrieval.profile",
            fmt::format("a profile is not read with outcomes {}", behaviour.outcomes()),
            "outcomes: \"profile\", or no profile");
  }
  range("simulation.retrieval.miss_rate", behaviour.miss_rate(), 0, 1);
  range("simulation.retrieval.correction_rate", behaviour.correction_rate(), 0, 1);
  for (const double rate : behaviour.correction_rate_by_layer()) {
    range("simulation.retrieval.correction_rate_by_layer", rate, 0, 1);
  }
}

RetrievalSpec retrieval_spec(const v1::Scenario& scenario, const LlmSpec& llm) {
  const RetrievalTraits traits = retrieval_traits(scenario.policies().retrieval());
  if (traits.reads_everything()) return {};
  const v1::RetrievalOptions& in = scenario.policies().retrieval_options();
  RetrievalSpec out;
  out.budget_tokens = in.budget_tokens();
  out.sink_tokens = in.sink_tokens();
  out.window_tokens = in.window_tokens();
  out.extra_tokens = in.extra_tokens();
  out.layers_dense = in.layers_dense();
  out.tau_q32 = std::llround(in.tau() * static_cast<double>(kOneQ32));
  out.speculation = in.speculation();
  out.pooling = kPoolings.value(in.pooling());
  out.summary = kSummaries.value(in.summary());
  out.scale = kScales.value(in.scale());
  out.rank = in.rank();
  out.columns_q32 = static_cast<int64_t>(ratio_q32(in.columns()));
  if (traits.needs_resident()) {
    const uint32_t page_tokens = scenario.memory().page_tokens();
    const double fraction = resident_fraction(
        llm, retrieval_geometry(out, recall_copies(scenario), traits.kind, llm, page_tokens),
        out.layers_dense);
    out.resident_fraction_q32 = static_cast<uint32_t>(std::min<uint64_t>(ratio_q32(fraction), UINT32_MAX));
  }
  return out;
}

RecallCopies recall_copies(const v1::Scenario& scenario) {
  if (retrieval_traits(scenario.policies().retrieval()).reads_everything()) return {};
  const v1::RetrievalOptions& in = scenario.policies().retrieval_options();
  return {kLayouts.value(in.host_layout()), kCopies.value(in.host_copy()), in.staging_buffers()};
}

RetrievalGeometry retrieval_geometry(const RetrievalSpec& spec, const RecallCopies& copies,
                                     RetrievalKind kind, const LlmSpec& llm, uint32_t page_tokens) {
  const auto head_bytes =
      static_cast<uint32_t>(std::llround(llm.kv.bytes(llm.head_dim)));  // K or V of a token
  RetrievalGeometry out;
  out.page_tokens = page_tokens;
  out.piece_bytes = copies.layout == HostPageLayout::kNhd ? head_bytes : 0;
  out.copy_each_piece = copies.copy == HostCopy::kEachPiece;
  out.by_kernel = copies.copy == HostCopy::kKernel;
  out.staging_buffers = copies.staging_buffers;
  out.summary_vectors = spec.summary == PageSummary::kMean ? 1 : 2;
  if (kind == RetrievalKind::kRecallsValues) {
    out.values_only = true;
    out.rank = spec.rank;
  }
  if (kind == RetrievalKind::kRecallsTokens) {
    out.piece_bytes = 2 * head_bytes;  // tokens are copied one by one, K and V together
    out.scored_columns = static_cast<double>(spec.columns_q32) / static_cast<double>(kOneQ32);
  }
  return out;
}

}  // namespace kvtwin
