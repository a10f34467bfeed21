#include "engine/policy/registry.h"

#include <algorithm>
#include <iterator>

#include "engine/base/check.h"
#include "engine/policy/axis_factories.h"
#include "engine/policy/retention.h"

namespace kvtwin {
namespace {

constexpr PolicyInfo kPolicies[] = {
    {"scorer", "none", "Nothing is scored; every cell is kept."},
    {"budget", "all", "A head group may keep every cell."},
    {"budget", "ratio", "Every head keeps the same share of the cells that are ranked."},
    {"budget", "uniform", "Every head keeps the same number of cells, whatever the length."},
    {"budget", "pyramid", "Lower layers keep more cells than higher ones; their sum is layers times cells."},
    {"budget", "reserved",
     "Each head keeps the share that calibration found for it, mean plus alpha standard deviations; pages "
     "for "
     "what will be kept are set aside at admission (TANGRAM)."},
    {"budget", "head_masks",
     "Some heads keep everything, the others sinks and window only (DuoAttention, RazorAttention)."},
    {"budget", "ada",
     "A layer's heads share layers' worth of cells by their scores, with a floor each; counted by the world "
     "(Ada-KV)."},
    {"budget", "top_per_layer", "The best share of a layer's cells stays, whichever heads they are of."},
    {"budget", "top_across_layers",
     "The best share of all layers' cells stays, whichever heads they are of."},
    {"budget", "released",
     "The dynamic chunk rule of TANGRAM's released code: counts by scores, rounded up to pages, pages given "
     "back after each chunk."},
    {"layout", "paged", "Cells fill pages in order of position; a cached prefix keeps its slots."},
    {"layout", "arena",
     "A fixed number of pages per call and head group; the world chooses what they hold (StreamingLLM's and "
     "RaaS's rings)."},
    {"layout", "compact", "Kept cells move together and keep their rotation; pages behind them are freed."},
    {"layout", "compact_rerotate", "As compact, with keys rotated to their new places: never shared."},
    {"layout", "slot_dead", "Dropped cells leave holes; pages of one token are freed one by one (IntentKV)."},
    {"layout", "page_mask_dead", "Dropped cells are masked; a page is freed when nothing in it is left."},
    {"layout", "ragged",
     "Groups of KV heads have page tables of their own, each as long as its heads need (TANGRAM)."},
    {"precision", "bf16", "Every cell is stored as the model computed it."},
    {"placement", "gpu", "KV lives on the gpu only; what is evicted is computed again."},
    {"placement", "host",
     "Cached prefixes that are about to be evicted are copied to the host; a hit there is recalled by a "
     "transfer that the call waits for."},
    {"retrieval", "all", "A step reads every live page."},
    {"partition", "uniform", "All heads of a layer are cut into the same number of splits."},
    {"identity", "shared", "Equal tokens share KV, whoever sent them."},
    {"identity", "session", "Only calls of one session share KV."},
    {"identity", "session_memory",
     "As session; besides, the world keeps a query memory for each of the 1,024 sessions used last "
     "(IntentKV)."},
    {"identity", "none", "No prefix is ever reused."},
    {"prefix_eviction", "lru", "The prefix that was let go longest ago loses its pages first."},
    {"prefix_eviction", "lfu", "The prefix that was used least often loses its pages first; ties by age."},
};

template <typename T>
struct Choice {
  std::string_view name;
  std::unique_ptr<T> (*make)();
};

constexpr Choice<Scorer> kScorers[] = {{"none", make_scorer_none}};
constexpr Choice<Precision> kPrecisions[] = {{"bf16", make_precision_bf16}};
constexpr Choice<Placement> kPlacements[] = {{"gpu", make_placement_gpu}, {"host", make_placement_host}};
constexpr Choice<Retrieval> kRetrievals[] = {{"all", make_retrieval_all}};
constexpr Choice<Partition> kPartitions[] = {{"uniform", make_partition_uniform}};
constexpr Choice<Identity> kIdentities[] = {{"shared", make_identity_shared},
                                            {"session", make_identity_session},
                                            {"session_memory", make_identity_session_memory},
                                            {"none", make_identity_none}};
constexpr Choice<PrefixEviction> kEvictions[] = {{"lru", make_lru_eviction}, {"lfu", make_lfu_eviction}};

template <typename T, size_t kCount>
std::unique_ptr<T> make(const Choice<T> (&choices)[kCount], std::string_view name) {
  for (const Choice<T>& choice : choices) {
    if (choice.name == name) return choice.make();
  }
  KVT_CHECK(!"a policy name that validate_policy_set() lets pass and no factory knows");
  return nullptr;
}

// "no budget "foo"; there is all, reserved".
std::optional<std::string> unknown(std::string_view axis, std::string_view name) {
  std::string known;
  for (const PolicyInfo& policy : kPolicies) {
    if (policy.axis != axis) continue;
    if (policy.name == name) return std::nullopt;
    known += (known.empty() ? "" : ", ") + std::string(policy.name);
  }
  return "there is no " + std::string(axis) + " \"" + std::string(name) + "\"; choose one of: " + known;
}

}  // namespace

std::span<const PolicyInfo> all_policies() { return kPolicies; }

PolicyAxes make_axes(const PolicySet& set) {
  return {make(kScorers, set.scorer),
          make_budget(set),
          make_layout(set),
          make(kPrecisions, set.precision),
          make(kPlacements, set.placement),
          make(kRetrievals, set.retrieval),
          make(kPartitions, set.partition),
          make(kIdentities, set.identity)};
}

std::unique_ptr<PrefixEviction> make_prefix_eviction(std::string_view name) { return make(kEvictions, name); }

std::optional<std::string> unknown_policy(const PolicySet& set) {
  const std::pair<std::string_view, std::string_view> names[] = {
      {"scorer", set.scorer},       {"budget", set.budget},       {"layout", set.layout},
      {"precision", set.precision}, {"placement", set.placement}, {"retrieval", set.retrieval},
      {"partition", set.partition}, {"identity", set.identity}};
  for (const auto& [axis, name] : names) {
    if (auto wrong = unknown(axis, name)) return wrong;
  }
  return std::nullopt;
}

std::optional<std::string> validate_policy_set(const PolicySet& set, const CoreConfig& config) {
  if (auto wrong = unknown_policy(set)) return wrong;
  if (auto wrong = unknown("prefix_eviction", config.prefix_eviction)) return wrong;
  if (auto wrong = validate_layout_spec(set.layout_spec)) return wrong;
  if (auto wrong = validate_budget_spec(set.budget, set.budget_spec, set.layout_spec)) return wrong;
  return validate_axes(make_axes(set), set, config);
}

std::optional<std::string> validate_axes(const PolicyAxes& axes, const PolicySet& set,
                                         const CoreConfig& config) {
  if (auto wrong = validate_retention(axes, set, config)) return wrong;
  if (axes.layout->needs_page_1() && config.page_tokens != 1) {
    return "layout " + set.layout + " frees single tokens and needs page_tokens 1, not " +
           std::to_string(config.page_tokens) + "; set it, or take layout page_mask_dead";
  }
  if (!axes.layout->keeps_slots() && config.prefix_cache) {
    return "layout " + set.layout +
           " moves cells, so a cached prefix cannot be reused; set prefix_cache: false";
  }
  if (axes.scorer->causality() == Causality::kSuffixDependent && axes.identity->shares_across_sessions()) {
    return "scorer " + set.scorer +
           " keeps cells by what follows them, which would leak one session's view into "
           "another; set identity: session or none";
  }
  if (axes.placement->uses_host() && config.pages_host == 0) {
    return "placement " + set.placement +
           " needs a host tier, but it has 0 pages; give it room, or use placement gpu";
  }
  if (!axes.placement->uses_host() && config.pages_host > 0) {
    return "the host tier has " + std::to_string(config.pages_host) + " pages that placement " +
           set.placement + " never uses; set placement host, or 0 pages";
  }
  return std::nullopt;
}

std::optional<std::string> validate_core_config(const CoreConfig& config) {
  if (auto wrong = validate_limits(config)) return wrong;
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
  if (uint64_t{config.pages_gpu} + config.pages_host >= UINT32_MAX) {
    return number(uint64_t{config.pages_gpu} + config.pages_host) +
           " pages do not fit 32-bit page numbers; use "
           "larger pages";
  }
  if (config.watermark_pages >= config.pages_gpu) {
    return "watermark_pages is " + number(config.watermark_pages) + " of " + number(config.pages_gpu) +
           " pages, so nothing could ever be admitted";
  }
  if (config.calls_max == 0) return "calls_max is 0, so nothing could ever run";
  if (config.step_tokens_max == 0) return "step_tokens_max is 0, so nothing could ever run";
  if (config.steps_in_flight_max < 1 || config.steps_in_flight_max > 2) {
    return "steps_in_flight_max is " + number(config.steps_in_flight_max) + ", but must be 1 or 2";
  }
  if (config.repeat_max == 0) return "repeat_max is 0, but must be at least 1";
  if (config.evict_batch_pages == 0) return "evict_batch_pages is 0, but must be at least 1";
  if (config.clean_batch_pages == 0) return "clean_batch_pages is 0, but must be at least 1";
  if (config.page_order == PageOrder::kOldestFirst && config.prefix_eviction != "lru") {
    return "page_order OLDEST_FIRST keeps free and cached pages in one queue by age, which prefix_eviction " +
           config.prefix_eviction + " does not follow; set prefix_eviction: lru, or page_order: LOWEST_FIRST";
  }
  if (!std::is_sorted(config.capture_sizes.begin(), config.capture_sizes.end())) {
    return "capture_sizes must ascend";
  }
  return std::nullopt;
}

}  // namespace kvtwin
