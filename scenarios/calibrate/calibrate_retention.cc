#include "scenarios/calibrate/calibrate_retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>

#include "kernels/select/select.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {
namespace {

struct Region {
  uint32_t tokens = 0;  // of the context
  uint32_t begin = 0;   // the first token after the sinks
  uint32_t rows = 0;    // ranked tokens; the window follows them
  double ratio = 0;     // the fraction of them to retain
};

// The number of ranked KV entries that each head retains.
std::vector<uint32_t> retained_entries(std::vector<float>* scores, const LlmSpec& llm, const Region& region,
                                       bool all_layers) {
  const uint32_t scopes = all_layers ? 1 : llm.layers, heads = llm.layers * llm.kv_heads / scopes;
  const auto kv_entries = static_cast<uint64_t>(std::ceil(region.ratio * heads * region.rows - 1e-6));
  std::vector<uint32_t> counts;
  for (uint32_t scope = 0; scope < scopes; ++scope) {
    float* const first = scores->data() + uint64_t{scope} * heads * region.tokens + region.begin;
    const kernels::Ranked ranked{{first, heads, region.rows, region.tokens}, {region.rows, {}}};
    const std::vector<uint32_t> some = kernels::count_flattened(ranked, kv_entries);
    counts.insert(counts.end(), some.begin(), some.end());
  }
  return counts;
}

}  // namespace

Result<RetentionProfile> calibrate_retention(const Scenario& scenario, const RetentionRequest& request,
                                             CalibrationModel* model) {
  const std::string& scorer = scenario.values.policies().scorer();
  const kernels::ScoreSpec spec = score_spec(scenario.values);
  const std::optional<std::string> cannot = cpu::cannot_score(*spec.scorer);
  if (cannot)
    return make_error(scenario.where("policies.scorer"),
                      fmt::format("scorer {} cannot be calibrated", scorer), *cannot);
  const LlmSpec& llm = model->llm();
  RetentionProfile out;
  out.name = fmt::format("{}-{}", scorer, llm.name);
  out.model = llm.name, out.scorer = scorer;
  out.level = request.all_layers ? "non_uniform" : "non_uniform_per_layer";
  out.base_ratio = request.ratio;
  out.layers = llm.layers, out.kv_heads = llm.kv_heads;
  out.window_tokens = request.window, out.sink_tokens = request.sinks;
  out.layer_ids.resize(llm.layers);
  std::iota(out.layer_ids.begin(), out.layer_ids.end(), 0u);
  model->each(model->room(scenario, *spec.scorer), [&](size_t index, cpu::CapturedPass* pass) {
    Region region{pass->tokens(), request.sinks, 0, 0};
    const uint32_t behind = region.tokens - std::min(region.tokens, request.sinks);
    region.rows = behind - std::min(behind, request.window);
    region.ratio = adjusted_ratio(request.ratio, behind, request.window);
    cpu::ScoredContext context = model->scored(scenario, *spec.scorer, index);
    context.retained = static_cast<uint32_t>(region.ratio * region.rows);
    std::vector<float> scores = cpu::score_captured(spec, context, pass);
    out.context_tokens.push_back(behind);
    for (const uint32_t count : retained_entries(&scores, llm, region, request.all_layers))
      out.samples.push_back(static_cast<double>(count) / behind);
  });
  out.source = fmt::format(
      "kvtwin calibrate policy, scenario {}, seed {}{}", scenario.values.name(), scenario.values.seed(),
      spec.scorer->weights != kernels::TrainedWeights::kNone && scenario.values.cpu().scorer_weights().empty()
          ? ", the scorer's weights drawn from it"
          : "");
  complete_tables(&out);
  return out;
}

}  // namespace kvtwin
