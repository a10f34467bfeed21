#include "engine/policy/registry.h"

#include <algorithm>
#include <iterator>

#include "engine/base/check.h"
#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

constexpr PolicyInfo kPolicies[] = {
    {"scorer", "none", "Nothing is scored; every cell is kept."},
    {"budget", "all", "A head group may keep every cell."},
    {"layout", "paged", "Cells fill pages in order of position; a cached prefix keeps its slots."},
    {"precision", "bf16", "Every cell is stored as the model computed it."},
    {"placement", "gpu", "KV lives on the gpu only; what is evicted is computed again."},
    {"placement", "host",
     "Cached prefixes that are about to be evicted are copied to the host; a hit there is recalled by a "
     "transfer that the call waits for."},
    {"placement", "arena",
     "Every page of a call is on the host. The prompt is computed on the gpu; at its end the gpu keeps an "
     "arena of fixed size per call, whose content the retrieval chooses step by step."},
    {"retrieval", "all", "A step reads every live page."},
    {"retrieval", "quest",
     "Reads the pages whose min-max summary bounds the query highest. All pages stay on the gpu; the first "
     "two "
     "layers read everything."},
    {"retrieval", "arkvale",
     "As Quest, with cuboid summaries and pages on the host: what is chosen and absent is recalled before "
     "attention, in pieces of one token and head (NHD), one thing after another."},
    {"retrieval", "shadowkv",
     "Keys stay on the gpu as low-rank factors and are rebuilt for the chosen pages while their values are "
     "recalled; outlier and local pages stay."},
    {"retrieval", "infinigen",
     "During layer l the tokens of layer l+1 are chosen from partial keys and recalled one by one; nothing "
     "chosen is kept for the next step."},
    {"retrieval", "freekv",
     "Pages for the next step are chosen and recalled in the background with this step's query; heads whose "
     "query has turned (cosine below tau) are chosen again and recalled before attention."},
    {"partition", "uniform", "All heads of a layer are cut into the same number of splits."},
    {"identity", "shared", "Equal tokens share KV, whoever sent them."},
    {"identity", "session", "Only calls of one session share KV."},
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
constexpr Choice<Budget> kBudgets[] = {{"all", make_budget_all}};
constexpr Choice<Layout> kLayouts[] = {{"paged", make_layout_paged}};
constexpr Choice<Precision> kPrecisions[] = {{"bf16", make_precision_bf16}};
constexpr Choice<Placement> kPlacements[] = {
    {"gpu", make_placement_gpu}, {"host", make_placement_host}, {"arena", make_placement_arena}};
constexpr Choice<Retrieval> kRetrievals[] = {{"all", make_retrieval_all},
                                             {"quest", make_retrieval_quest},
                                             {"arkvale", make_retrieval_arkvale},
                                             {"shadowkv", make_retrieval_shadowkv},
                                             {"infinigen", make_retrieval_infinigen},
                                             {"freekv", make_retrieval_freekv}};
constexpr Choice<Partition> kPartitions[] = {{"uniform", make_partition_uniform}};
constexpr Choice<Identity> kIdentities[] = {
    {"shared", make_identity_shared}, {"session", make_identity_session}, {"none", make_identity_none}};
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

// METHODS 7.5, the pairs with placement and retrieval.
std::optional<std::string> validate_retrieval(const PolicySet& set, const PolicyAxes& axes,
                                              const CoreConfig& config) {
  if (axes.retrieval->needs_arena() && !axes.placement->uses_arena()) {
    return "retrieval " + set.retrieval + " recalls pages from the host, but placement " + set.placement +
           " keeps none of a running call there; set placement: arena, or retrieval: quest";
  }
  if (axes.placement->uses_arena() && !axes.retrieval->needs_arena()) {
    return "placement arena leaves a call only part of its pages, but retrieval " + set.retrieval +
           " reads all of them on the gpu; set placement: gpu, or a retrieval that recalls (freekv)";
  }
  if (axes.retrieval->reads_everything()) return std::nullopt;
  if (axes.placement->uses_arena() && config.prefix_cache) {
    return "placement arena gives a prompt's pages back at its end, so there is no prefix on the gpu to "
           "share; "
           "set prefix_cache: false";
  }
  if (!axes.budget->keeps_all()) {
    return "retrieval " + set.retrieval + " chooses among all pages, but budget " + set.budget +
           " drops cells of them, and no summary is rebuilt; set budget: all, or retrieval: all";
  }
  if (set.layout != "paged") {
    return "retrieval " + set.retrieval + " chooses whole pages in order of position, which layout " +
           set.layout + " does not keep; set layout: paged, or retrieval: all";
  }
  if (set.precision != "bf16") {
    return "retrieval " + set.retrieval + " summarises exact keys, and recall of packed pages (precision " +
           set.precision + ") is not built; set precision: bf16, or retrieval: all";
  }
  return check_retrieval_spec(set.retrieval_spec, axes.retrieval->method(), config.page_tokens);
}

}  // namespace

std::span<const PolicyInfo> all_policies() { return kPolicies; }

PolicyAxes make_axes(const PolicySet& set) {
  return {make(kScorers, set.scorer),       make(kBudgets, set.budget),
          make(kLayouts, set.layout),       make(kPrecisions, set.precision),
          make(kPlacements, set.placement), make(kRetrievals, set.retrieval),
          make(kPartitions, set.partition), make(kIdentities, set.identity)};
}

std::unique_ptr<PrefixEviction> make_prefix_eviction(std::string_view name) { return make(kEvictions, name); }

std::optional<std::string> validate_policy_set(const PolicySet& set, const CoreConfig& config) {
  const std::pair<std::string_view, std::string_view> names[] = {{"scorer", set.scorer},
                                                                 {"budget", set.budget},
                                                                 {"layout", set.layout},
                                                                 {"precision", set.precision},
                                                                 {"placement", set.placement},
                                                                 {"retrieval", set.retrieval},
                                                                 {"partition", set.partition},
                                                                 {"identity", set.identity},
                                                                 {"prefix_eviction", config.prefix_eviction}};
  for (const auto& [axis, name] : names) {
    if (auto wrong = unknown(axis, name)) return wrong;
  }
  const PolicyAxes axes = make_axes(set);
  const bool scores = axes.scorer->moment() != Moment::kAtNoTime;
  if (!axes.budget->keeps_all() && !scores) {
    return "budget " + set.budget +
           " drops cells, but scorer none ranks nothing; choose a scorer, or budget all";
  }
  if (axes.scorer->moment() == Moment::kPromptEnd && !axes.budget->keeps_all() &&
      axes.budget->known_at_admission() && config.admission != AdmissionKind::kFullReservation) {
    return "scorer " + set.scorer + " needs the whole prompt before it drops anything, but budget " +
           set.budget + " reserves only what is kept; set admission: FULL_RESERVATION";
  }
  if (axes.layout->needs_page_1() && config.page_tokens != 1) {
    return "layout " + set.layout + " frees single tokens and needs page_tokens 1, not " +
           std::to_string(config.page_tokens);
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
  if (auto wrong = validate_retrieval(set, axes, config)) return wrong;
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
  return validate_policy_set(config.policies, config);
}

}  // namespace kvtwin
