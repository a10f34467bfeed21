#include "engine/methods/registry.h"

#include <algorithm>
#include <iterator>

#include "engine/base/check.h"
#include "engine/methods/axis_factories.h"
#include "engine/methods/combinations.h"
#include "engine/methods/retention.h"
#include "engine/methods/scorer_spec.h"

namespace kvtwin {
namespace {

std::vector<PolicyInfo> joined() {
  std::vector<PolicyInfo> out;
  append_scorers(&out);
  append_budgets(&out);
  append_layouts(&out);
  append_precisions(&out);
  append_placements(&out);
  append_retrievals(&out);
  append_partitions(&out);
  append_identities(&out);
  append_evictions(&out);
  return out;
}

// Example: no budget "foo"; there is all, reserved.
std::optional<std::string> unknown(std::string_view axis, std::string_view name) {
  std::string known;
  for (const PolicyInfo& policy : all_policies()) {
    if (policy.axis != axis) continue;
    if (policy.name == name) return std::nullopt;
    known += (known.empty() ? "" : ", ") + std::string(policy.name);
  }
  return "there is no " + std::string(axis) + " \"" + std::string(name) + "\"; choose one of: " + known;
}

// Numbers of formats that no combination makes right.
std::optional<std::string> validate_precision(const PolicySet& set, const CoreConfig& config) {
  const PrecisionSpec& spec = set.precision_spec;
  const PrecisionTraits traits = precision_traits(set.precision);
  if (spec.group != 32 && spec.group != 64 && spec.group != 128) {
    return "precision_options.group is " + std::to_string(spec.group) + ", but must be 32, 64 or 128";
  }
  if (spec.bits_above_two > uint64_t{2} << 32) return "precision_options.bits must be between 2 and 4";
  if (traits.prompt_format != Format::kInt2) return std::nullopt;
  if (config.page_tokens % spec.group != 0) {
    return "precision " + set.precision + " packs keys in groups of " + std::to_string(spec.group) +
           " tokens, which must not straddle pages of " + std::to_string(config.page_tokens) +
           "; set page_tokens to a multiple of " + std::to_string(spec.group);
  }
  const bool residual = traits.exact == ExactTokens::kResidual;
  if (residual && (spec.residual_tokens == 0 || spec.residual_tokens % spec.group != 0)) {
    return "precision_options.residual_tokens is " + std::to_string(spec.residual_tokens) +
           ", but must be a multiple of the group, " + std::to_string(spec.group);
  }
  return std::nullopt;
}

// The two pools of mixed precision.
std::optional<std::string> validate_pools(const PolicySet& set, const CoreConfig& config) {
  if (!precision_traits(set.precision).by_tag) {
    if (config.pages_int2 == 0) return std::nullopt;
    return std::to_string(config.pages_int2) + " pages are int2, but precision " + set.precision +
           " has one format; set precision: triaxial";
  }
  const uint32_t pages_int4 = config.pages_gpu - std::min(config.pages_int2, config.pages_gpu);
  if (config.watermark_pages < pages_int4) return std::nullopt;
  return std::to_string(pages_int4) + " of " + std::to_string(config.pages_gpu) +
         " pages are int4, and watermark_pages is " + std::to_string(config.watermark_pages) +
         ", so nothing could ever be admitted; give more bits (precision_options.bits) or pages";
}

// Whether the tiers have pages where the placement uses them.
std::optional<std::string> validate_host_pages(const PolicySet& set, const CoreConfig& config) {
  const bool uses_host = placement_traits(set.placement).uses_host;
  if (uses_host && config.pages_host == 0) {
    return "placement " + set.placement +
           " needs a host tier, but it has 0 pages; give it room, or use placement gpu";
  }
  if (!uses_host && config.pages_host > 0) {
    return "the host tier has " + std::to_string(config.pages_host) + " pages that placement " +
           set.placement + " never uses; set placement host, or 0 pages";
  }
  return std::nullopt;
}

}  // namespace

std::span<const PolicyInfo> all_policies() {
  static const std::vector<PolicyInfo> kAll = joined();
  return kAll;
}

PolicyAxes make_axes(const PolicySet& set) {
  return {make_scorer(set.scorer, set.scorer_spec),
          make_budget(set),
          layout_traits(set.layout),
          precision_traits(set.precision),
          placement_traits(set.placement),
          retrieval_traits(set.retrieval),
          partition_kind(set.partition),
          make_identity(set.identity)};
}

std::string method_name(const PolicySet& set) {
  const PolicySet plain;
  if (set.retrieval != plain.retrieval) return set.retrieval;
  if (set.scorer == plain.scorer && set.precision != plain.precision) return set.precision;
  return set.scorer + "/" + set.budget + "/" + set.layout;
}

std::optional<std::string> unknown_policy(const PolicySet& set) {
  const std::pair<std::string_view, std::string_view> names[] = {
      {"scorer", set.scorer},       {"budget", set.budget},       {"layout", set.layout},
      {"precision", set.precision}, {"placement", set.placement}, {"retrieval", set.retrieval},
      {"partition", set.partition}, {"identity", set.identity}};
  for (const auto& [axis, name] : names) {
    if (auto problem = unknown(axis, name)) return problem;
  }
  return std::nullopt;
}

std::optional<std::string> validate_policy_set(const PolicySet& set, const CoreConfig& config) {
  if (auto problem = unknown_policy(set)) return problem;
  if (auto problem = unknown("prefix_eviction", config.prefix_eviction)) return problem;
  if (auto problem = validate_scorer(set.scorer, set.scorer_spec)) return problem;
  if (auto problem = validate_layout_spec(set.layout_spec)) return problem;
  if (auto problem = validate_budget_spec(set.budget, set.budget_spec, set.layout_spec)) return problem;
  return validate_axes(make_axes(set), set, config);
}

std::optional<std::string> validate_axes(const PolicyAxes& axes, const PolicySet& set,
                                         const CoreConfig& config) {
  const CombinationRow* const row = find_problem(combination_of(axes, set, config), Computes::kSim);
  if (row != nullptr) return sentence(*row, set, config);
  if (auto problem = validate_retention(axes, set, config)) return problem;
  if (axes.layout.needs_page_1 && config.page_tokens != 1) {
    return "layout " + set.layout + " frees single tokens and needs page_tokens 1, not " +
           std::to_string(config.page_tokens) + "; set it, or take layout page_mask";
  }
  if (!axes.layout.keeps_slots && config.prefix_cache) {
    if (auto problem = validate_prefix_checkpoints(axes, set, config)) return problem;
  }
  if (auto problem = validate_precision(set, config)) return problem;
  if (auto problem = validate_pools(set, config)) return problem;
  if (!axes.retrieval.reads_everything()) {
    if (auto problem = check_retrieval_spec(set.retrieval_spec, axes.retrieval, config.page_tokens))
      return problem;
  }
  return validate_host_pages(set, config);
}

std::optional<std::string> validate_core_config(const CoreConfig& config) {
  if (auto problem = validate_limits(config)) return problem;
  return validate_policy_set(config.policies, config);
}

std::optional<std::string> validate_limits(const CoreConfig& config) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  if (config.page_tokens == 0 || config.page_tokens > 4096) {
    return "page_tokens is " + number(config.page_tokens) + ", but must be between 1 and 4096";
  }
  if (config.unit_tokens == 0 || config.page_tokens % config.unit_tokens != 0) {
    return "unit_tokens is " + number(config.unit_tokens) + ", but must divide page_tokens " +
           number(config.page_tokens);
  }
  if (config.pages_gpu == 0) return "there is no room for a single page of KV on the gpu";
  if (uint64_t{config.pages_gpu} + config.pages_host + config.pages_disk >= UINT32_MAX) {
    return number(uint64_t{config.pages_gpu} + config.pages_host + config.pages_disk) +
           " pages do not fit 32-bit page numbers; use "
           "larger pages";
  }
  if (config.watermark_pages >= config.pages_gpu) {
    return "watermark_pages is " + number(config.watermark_pages) + " of " + number(config.pages_gpu) +
           " pages, so nothing could ever be admitted";
  }
  if (config.requests_max == 0) return "requests_max is 0, so nothing could ever run";
  if (config.step_tokens_max == 0) return "step_tokens_max is 0, so nothing could ever run";
  if (config.steps_in_flight_max < 1 || config.steps_in_flight_max > 2) {
    return "steps_in_flight_max is " + number(config.steps_in_flight_max) + ", but must be 1 or 2";
  }
  if (config.repeat_max == 0) return "repeat_max is 0, but must be at least 1";
  if (config.evict_batch_pages == 0) return "evict_batch_pages is 0, but must be at least 1";
  if (config.offload_batch_pages == 0) return "offload_batch_pages is 0, but must be at least 1";
  if (config.page_order == PageOrder::kOldestFirst && !eviction_traits(config.prefix_eviction).by_age) {
    return "page_order OLDEST_FIRST keeps free and cached pages in one queue by age, which prefix_eviction " +
           config.prefix_eviction + " does not follow; set prefix_eviction: lru, or page_order: LOWEST_FIRST";
  }
  if (!std::is_sorted(config.capture_sizes.begin(), config.capture_sizes.end())) {
    return "capture_sizes must ascend";
  }
  return std::nullopt;
}

}  // namespace kvtwin
