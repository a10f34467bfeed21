#include "scenarios/app/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/methods/traits.h"
#include "models/cost/kv_price.h"
#include "models/files/textproto.h"
#include "models/profiles/retention_profile.h"
#include "models/profiles/tag_map.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/load/names.h"

namespace kvtwin {
namespace {

// Reads and parses the file that an option names; on failure adds an error at the option.
template <typename T>
std::optional<T> load(const Scenario& scenario, const char* field, const std::string& written,
                      Result<T> (*parse)(std::string_view, const std::string&), Errors* errors) {
  const std::string path = scenario.file(written);
  const Result<std::string> text = read_text_file(path);
  Result<T> parsed = text ? parse(*text, path) : tl::unexpected(text.error());
  if (parsed) return std::move(*parsed);
  const Error& inner = parsed.error();
  errors->push_back({scenario.where(field), inner.where + ": " + inner.what, inner.hint});
  return std::nullopt;
}

void load_precision(const Scenario& scenario, PolicySet* set, Errors* errors) {
  const v1::PrecisionOptions& in = scenario.values.policies().precision_options();
  PrecisionSpec& spec = set->precision_spec;
  spec.group = in.group();
  spec.residual_tokens = in.residual_tokens();
  spec.ageing = kAgeings.value(in.ageing());
  double bits = in.bits();
  if (!in.tag_map().empty()) {
    const auto map =
        load<TagMap>(scenario, "policies.precision_options.tag_map", in.tag_map(), parse_tag_map, errors);
    if (!map) return;
    spec.four_bit_tags = map->four_bit_tags;
    if (bits == 0) bits = map->bits;
  }
  if (bits == 0) bits = 4;
  spec.bits_above_two = static_cast<uint64_t>(std::llround((bits - 2) * 0x1p32));
}

}  // namespace

std::optional<RetentionProfile> load_retention(const Scenario& scenario, const char* field,
                                               const std::string& written, Errors* errors) {
  return load<RetentionProfile>(scenario, field, written, parse_retention_profile, errors);
}

PartitionSpec load_partition(const Scenario& scenario, const LlmSpec& llm, Errors* errors) {
  const v1::PartitionOptions& in = scenario.values.policies().partition_options();
  PartitionSpec spec;
  spec.uniform_splits = in.uniform_splits();
  spec.flash_splits_max = in.flash_splits_max();
  spec.tile = in.tile();
  spec.aot_weight = kAotWeights.value(in.aot_weight());
  spec.aot_exact_grid = in.aot_exact_grid();
  spec.aot_waves = in.aot_waves();
  if (in.profile().empty()) return spec;
  const char* const field = "policies.partition_options.profile";
  const auto profile = load_retention(scenario, field, in.profile(), errors);
  if (!profile) return spec;
  if (profile->layers != llm.layers || profile->kv_heads != llm.kv_heads) {
    errors->push_back({scenario.where(field),
                       fmt::format("{} has {} layers of {} KV heads, {} has {} of {}", profile->name,
                                   profile->layers, profile->kv_heads, llm.name, llm.layers, llm.kv_heads),
                       "a profile of the scenario's model (kvtwin model import-profile)"});
    return spec;
  }
  spec.head_budgets = to_q32(budgets(profile->mu, profile->sigma, in.alpha()));
  return spec;
}

Result<std::optional<RecallProfile>> load_recall_profile(const Scenario& scenario, const LlmSpec& llm) {
  const std::string& written = scenario.values.simulation().retrieval().profile();
  if (written.empty()) return std::optional<RecallProfile>();
  const char* const field = "simulation.retrieval.profile";
  Errors errors;
  std::optional<RecallProfile> profile =
      load<RecallProfile>(scenario, field, written, parse_recall_profile, &errors);
  if (!profile) return tl::unexpected<Error>(errors.front());
  if (profile->layers == llm.layers && profile->kv_heads == llm.kv_heads) return profile;
  return make_error(scenario.where(field),
                    fmt::format("{} has {} layers of {} KV heads, {} has {} of {}", profile->name,
                                profile->layers, profile->kv_heads, llm.name, llm.layers, llm.kv_heads),
                    "a profile of the scenario's model (kvtwin calibrate policy retrieval)");
}

void load_format_specs(const Scenario& scenario, const LlmSpec& llm, PolicySet* set, Errors* errors) {
  load_precision(scenario, set, errors);
  load_partition(scenario, llm, errors);  // prices read it again; errors are reported before anything runs
  const std::string& profile = scenario.values.cost().profile();
  if (precision_traits(set->precision).packed() && !profile.empty() && !profile.ends_with(".textproto")) {
    errors->push_back(
        {scenario.where("policies.precision"),
         fmt::format("{} has no measured kernels in the profile, which reads bf16 KV", set->precision),
         "leave out cost.profile: the roofline prices formats by their bytes"});
  }
}

void apply_precision(const Scenario& scenario, LlmSpec* llm) {
  const v1::Policies& policies = scenario.values.policies();
  const Format format = precision_traits(policies.precision()).decode_format;
  if (format == Format::kBf16) return;
  const PageShape shape{scenario.values.memory().page_tokens(), llm->head_dim,
                        policies.precision_options().group()};
  llm->kv = kv_tensor_format(format, shape);
  // Two pools: everything that is not int2 is priced as int4, including entries that wait for their group
  // (fewer than a page).
  if (precision_traits(policies.precision()).by_tag) llm->kv_low_bit = kv_tensor_format(Format::kInt2, shape);
}

MixedPrecisionPoolSize mixed_precision_pool_pages(const LlmSpec& llm, uint32_t tp, uint32_t page_tokens,
                                                  uint64_t kv_bytes, const PrecisionSpec& spec) {
  const PageShape shape{page_tokens, llm.head_dim, spec.group};
  return split_mixed_precision_pool(kv_bytes, spec.bits_above_two,
                                    pool_page_bytes(llm, tp, Format::kInt2, shape),
                                    pool_page_bytes(llm, tp, Format::kInt4, shape));
}

uint64_t int2_page_bytes(const Scenario& scenario, const LlmSpec& llm, uint64_t page_bytes) {
  const PageShape shape{scenario.values.memory().page_tokens(), llm.head_dim,
                        scenario.values.policies().precision_options().group()};
  return page_bytes * pool_page_bytes(llm, 1, Format::kInt2, shape) /
         pool_page_bytes(llm, 1, Format::kInt4, shape);
}

uint32_t pages_int2(uint32_t pages, const PrecisionSpec& spec) {
  constexpr uint64_t kTwo = uint64_t{2} << 32;
  const auto parts = static_cast<unsigned __int128>(kTwo - std::min(spec.bits_above_two, kTwo));
  return static_cast<uint32_t>(parts * pages / kTwo);
}

PlanPrice plan_price(const Scenario& scenario, const PolicySet& set) {
  const v1::Policies& policies = scenario.values.policies();
  if (partition_kind(policies.partition()) != PartitionKind::kFlashInfer) return {};
  const int64_t given_ns = policies.partition_options().plan_ns();
  if (!heads_differ(set)) return {1, 1, given_ns};
  const uint32_t gpus = scenario.values.engines().tensor_parallel();
  return {set.layout_spec.layers, std::max(1u, set.layout_spec.kv_heads / gpus), given_ns};
}

uint64_t exact_entries_bytes(const Scenario& scenario, const LlmSpec& llm, uint32_t tp) {
  const v1::Policies& policies = scenario.values.policies();
  uint64_t tokens = 0;
  const ExactTokens exact = precision_traits(policies.precision()).exact;
  if (exact == ExactTokens::kResidual) tokens = policies.precision_options().residual_tokens();
  if (exact == ExactTokens::kGroup) tokens = scenario.values.memory().page_tokens() - 1;
  const PageShape token{1, llm.head_dim, 1};
  return scenario.values.limits().requests_max() * tokens * pool_page_bytes(llm, tp, Format::kBf16, token);
}

}  // namespace kvtwin
