// Translates a scenario's policies into the plain structs that the policy core reads.

#include <fmt/format.h>

#include <cmath>

#include "engine/methods/budget_groups.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"
#include "engine/methods/traits.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/formats.h"
#include "scenarios/app/head_fractions.h"
#include "scenarios/load/names.h"
#include "scenarios/load/retrieval_options.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {
namespace {

// The only place where a fraction is rounded.
Fraction fraction(double value) {
  return static_cast<Fraction>(std::llround(value * static_cast<double>(kWhole)));
}

BudgetSpec budget_spec(const v1::BudgetOptions& in, uint32_t heads, Errors* errors,
                       const Scenario& scenario) {
  BudgetSpec out;
  out.sinks = in.sinks();
  out.window = in.window();
  out.chunk_tokens = in.chunk_tokens();
  out.interval = in.interval();
  out.ratio = fraction(in.ratio());
  out.kv_entries = in.kv_entries();
  out.sinks_free = in.sinks_free();
  out.pyramid_beta = in.pyramid_beta();
  out.alpha = fraction(in.alpha());
  if (in.has_inflation()) out.inflation = fraction(in.inflation());
  out.relative = in.relative();
  out.decode_reserve = in.decode_reserve();
  for (const double mean : in.mean()) out.mu.push_back(fraction(mean));
  for (const double deviation : in.deviation()) out.sigma.push_back(fraction(deviation));
  out.retained_min = in.retained_min();
  out.uniform_depth = in.uniform_depth();
  if (in.full_heads_size() > 0) out.keeps_all.assign(heads, false);
  for (const uint32_t head : in.full_heads()) {
    if (head < heads) {
      out.keeps_all[head] = true;
    } else {
      errors->push_back({scenario.where("policies.budget_options.full_heads"),
                         "there is no head " + std::to_string(head),
                         "the model has " + std::to_string(heads) + " KV heads, from 0"});
    }
  }
  return out;
}

// Reads means and deviations from the profile that the budget names.
void load_profile(const Scenario& scenario, const LayoutSpec& layout, BudgetSpec* out, Errors* errors) {
  const v1::BudgetOptions& in = scenario.values.policies().budget_options();
  if (in.profile().empty()) return;
  const char* const field = "policies.budget_options.profile";
  const std::optional<RetentionProfile> profile = load_retention(scenario, field, in.profile(), errors);
  if (!profile) return;
  if (profile->layers != layout.layers || profile->kv_heads != layout.kv_heads) {
    errors->push_back({scenario.where(field),
                       fmt::format("{} has {} layers of {} KV heads, the engine has {} of {}", profile->name,
                                   profile->layers, profile->kv_heads, layout.layers, layout.kv_heads),
                       "a profile of the scenario's model (kvtwin calibrate policy budgets)"});
    return;
  }
  // Absolute fractions belong to the profile's own ratio; 1 is the default and requests no change.
  if (!in.relative() && in.ratio() < 1 && std::abs(in.ratio() - profile->base_ratio) > 1e-6) {
    errors->push_back(
        {scenario.where("policies.budget_options.ratio"),
         fmt::format("ratio is {}, {} was made at {}", in.ratio(), profile->name, profile->base_ratio),
         "set that ratio, a profile of yours, or relative: true, which scales the profile"});
    return;
  }
  for (const double mean : in.relative() ? profile->fraction_mu : profile->mu)
    out->mu.push_back(fraction(mean));
  for (const double d : in.relative() ? profile->fraction_sigma : profile->sigma)
    out->sigma.push_back(fraction(d));
}

// The simulator reads the contexts again; reading them here reports errors before anything runs.
void check_contexts(const Scenario& scenario, Errors* errors) {
  const std::string& written = scenario.values.policies().budget_options().profile();
  const char* const field = "policies.budget_options.profile";
  const auto profile = written.empty() ? std::nullopt : load_retention(scenario, field, written, errors);
  if (!errors->empty() || (profile && !profile->samples.empty())) return;
  errors->push_back({scenario.where("simulation.retained"),
                     "\"contexts\" draws from the contexts of a profile, but policies.budget_options names "
                     "none with contexts",
                     "name a result of kvtwin calibrate policy retention; or retained: \"profile\""});
}

void choose_retrieval(const Scenario& scenario, const LlmSpec& llm, PolicySet* set, Errors* errors) {
  const v1::Policies& axes = scenario.values.policies();
  if (!retrieval_traits(axes.retrieval()).reads_everything() && !llm.sliding_layers.empty()) {
    errors->push_back({scenario.where("policies.retrieval"),
                       fmt::format("retrieval {} on {}, whose sliding layers have no pages to choose from",
                                   axes.retrieval(), llm.name),
                       "it needs models whose layers all read the whole context; use retrieval: \"all\""});
  }
  const uint32_t dense = axes.retrieval_options().layers_dense();
  if (dense > llm.layers) {
    errors->push_back({scenario.where("policies.retrieval_options.layers_dense"),
                       fmt::format("layers_dense is {}, {} has {} layers", dense, llm.name, llm.layers),
                       fmt::format("from 0 to {}", llm.layers)});
  }
  // The simulator reads the profile again; reading it here reports errors before anything runs.
  if (const auto profile = load_recall_profile(scenario, llm); !profile) errors->push_back(profile.error());
  if (errors->empty()) set->retrieval_spec = retrieval_spec(scenario.values, llm);
}

// Context length at which attention takes as much work as everything else of a token: 2 FLOPs per parameter
// against 4 per context token, query head and dimension, in the layers that read the whole context.
uint32_t doubling_tokens(const LlmSpec& llm) {
  const uint64_t full_layers = llm.layers - llm.sliding_layers.size();
  const uint64_t per_token = 2 * full_layers * llm.query_heads * llm.head_dim;
  return per_token == 0
             ? 0
             : static_cast<uint32_t>(std::min<uint64_t>(llm.active_parameters() / per_token, UINT32_MAX));
}

// About how long the GPUs of an engine would take to compute `tokens` again: 2 FLOPs per parameter and token
// at the rate that large matrix products reach. Attention, and waiting for a place in a batch, come on top.
Duration refill_time(const Composed& composed, uint64_t tokens, uint32_t gpus) {
  const DeviceSpec& device = composed.device;
  const double rate = device.bf16_flop_per_s.value * device.gemm_fraction.value * gpus;
  if (rate <= 0) return {};
  const double flops =
      2.0 * static_cast<double>(composed.llm.active_parameters()) * static_cast<double>(tokens);
  return {static_cast<int64_t>(std::min(flops / rate * 1e9, 1e15))};
}

}  // namespace

PolicySet policy_set(const Scenario& scenario, const LlmSpec& llm, Errors* errors) {
  const v1::Policies& in = scenario.values.policies();
  PolicySet out;
  out.scorer = in.scorer();
  out.budget = in.budget();
  out.layout = in.layout();
  out.precision = in.precision();
  out.placement = in.placement();
  out.retrieval = in.retrieval();
  out.partition = in.partition();
  out.identity = in.identity();
  out.scorer_spec = scorer_spec(in);
  choose_retrieval(scenario, llm, &out, errors);
  load_format_specs(scenario, llm, &out, errors);
  const uint32_t tp = scenario.values.engines().tensor_parallel();
  out.layout_spec.layers = llm.layers;
  out.layout_spec.kv_heads = llm.kv_heads_per_gpu(tp) * tp;
  out.layout_spec.heads_per_group = in.layout_options().heads_per_group();
  out.layout_spec.clustering = kClusterings.value(in.layout_options().clustering());
  out.budget_spec = budget_spec(in.budget_options(), out.layout_spec.heads(), errors, scenario);
  load_profile(scenario, out.layout_spec, &out.budget_spec, errors);
  const size_t heads = out.layout_spec.heads();
  const bool tables = out.budget_spec.mu.size() == heads && out.budget_spec.sigma.size() == heads;
  if (errors->empty() && scenario.values.simulation().retained() == "contexts")
    check_contexts(scenario, errors);
  if (errors->empty() && scenario.values.simulation().retained() == "profile" && !tables) {
    errors->push_back(
        {scenario.where("simulation.retained"),
         "\"profile\" draws each head's retained fraction, but policies.budget_options has means of " +
             std::to_string(out.budget_spec.mu.size()) + " heads and deviations of " +
             std::to_string(out.budget_spec.sigma.size()),
         "give both for all " + std::to_string(heads) +
             " heads, budget_options.profile, or retained: \"fixed\""});
  }
  return out;
}

uint32_t page_groups(const PolicySet& set) {
  if (validate_layout_spec(set.layout_spec).has_value() || !layout_traits(set.layout).has_groups) return 1;
  return set.layout_spec.groups();
}

std::vector<Fraction> held_fractions(const PolicySet& set) {
  const uint32_t heads = set.layout_spec.heads();
  const std::vector<Fraction> equal(heads, kWhole);
  if (!layout_traits(set.layout).has_groups || budget_traits(set.budget).table == HeadTable::kLayers)
    return equal;
  const std::vector<Fraction> budgets = own_fractions(set);
  if (budgets.size() != heads) return equal;
  const GroupMap groups = make_groups(set);
  const std::vector<Fraction> largest = groups.largest(budgets);
  std::vector<Fraction> out;
  for (uint32_t head = 0; head < heads; ++head) {
    out.push_back(std::min(kWhole, largest[groups.group_of(head)]));
  }
  return out;
}

// A request with u unranked and n ranked tokens holds u + held n KV entries in a mean head, drops
// (1 - held) n, and retains u + own n.
double group_slack(const PolicySet& set) {
  const std::vector<Fraction> held = held_fractions(set);
  const std::vector<Fraction> own = own_fractions(set);
  if (own.size() != held.size() || !layout_traits(set.layout).has_groups ||
      budget_traits(set.budget).table == HeadTable::kLayers)
    return 0;
  double held_sum = 0, own_sum = 0;
  for (size_t head = 0; head < held.size(); ++head) {
    held_sum += static_cast<double>(held[head]);
    own_sum += static_cast<double>(std::min(own[head], kWhole));
  }
  const double whole = static_cast<double>(kWhole) * static_cast<double>(held.size());
  return held_sum >= whole ? 0 : (held_sum - own_sum) / (whole - held_sum);
}

bool heads_differ(const PolicySet& set) {
  const std::vector<Fraction> held = held_fractions(set);
  const uint32_t kv_heads = set.layout_spec.kv_heads;
  for (size_t head = 0; head < held.size(); ++head) {
    if (held[head] != held[head / kv_heads * kv_heads]) return true;
  }
  return false;
}

void configure_eviction(const Composed& composed, uint32_t gpus, CoreConfig* config) {
  const EvictionTraits traits = eviction_traits(config->prefix_eviction);
  if (traits.reads_length) config->eviction_doubling_tokens = doubling_tokens(composed.llm);
  if (traits.reads_refill)
    config->eviction_refill = refill_time(composed, uint64_t{config->pages_gpu} * config->page_tokens, gpus);
}

// With one token per page there is no need for lists; packed entries are unpacked first, and methods that
// choose pages pack them again.
bool lists_entries(const CoreConfig& config) {
  const PolicyAxes axes = make_axes(config.policies);
  return axes.layout.slot_retention == SlotRetention::kInPlace && config.page_tokens > 1 &&
         axes.retrieval.reads_everything() && axes.precision.prompt_format == Format::kBf16;
}

bool backend_reports_retained(const CoreConfig& config) {
  const PolicyAxes axes = make_axes(config.policies);
  return !axes.budget->keeps_all() && axes.layout.slot_retention != SlotRetention::kRing;
}

// K and V of a step's chunks are staged where only retained entries get pages: one layer deep, unless the
// scorer compares layers (docs/design/methods/tangram.md#chunks).
uint64_t staging_bytes(const Scenario& scenario, const LlmSpec& llm, const PolicySet& set) {
  const bool problem = unknown_policy(set).has_value() || validate_layout_spec(set.layout_spec).has_value() ||
                       validate_budget_spec(set.budget, set.budget_spec, set.layout_spec).has_value();
  if (problem) return 0;  // configure() reports it
  const PolicyAxes axes = make_axes(set);
  const bool staged = axes.layout.slot_retention == SlotRetention::kMove && !axes.budget->keeps_all() &&
                      axes.budget->known_at_admission() &&
                      axes.scorer->compression_trigger() == CompressionTrigger::kChunkEnd;
  if (!staged) return 0;
  const uint64_t all_layers = llm.kv_bytes_per_token(scenario.values.engines().tensor_parallel()) *
                              scenario.values.limits().step_tokens_max();
  return axes.scorer->needs_all_layers() ? all_layers : all_layers / llm.layers;
}

}  // namespace kvtwin
