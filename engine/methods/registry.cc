#include "engine/methods/registry.h"

#include <algorithm>
#include <iterator>

#include "engine/base/check.h"
#include "engine/methods/axis_factories.h"
#include "engine/methods/retention.h"
#include "engine/methods/scorer_spec.h"

namespace kvtwin {
namespace {

constexpr PolicyInfo kPolicies[] = {
    {"budget", "all", "A head group may retain every KV entry."},
    {"budget", "ratio", "Every head keeps the same fraction of the entries that are ranked."},
    {"budget", "uniform", "Every head keeps the same number of entries, whatever the length."},
    {"budget", "pyramid",
     "Lower layers keep more entries than higher ones; their sum is layers times entries."},
    {"budget", "reserved",
     "Each head retains the fraction that calibration found for it, mean plus alpha standard deviations; "
     "admission reserves the pages of the retained entries (TANGRAM)."},
    {"budget", "head_masks",
     "Some heads keep everything, the others sinks and window only (DuoAttention, RazorAttention)."},
    {"budget", "ada",
     "A layer's heads share layers' worth of entries by their scores, with a floor each; counted by the "
     "backend "
     "(Ada-KV)."},
    {"budget", "top_per_layer", "The best fraction of a layer's entries stays, whichever heads they are of."},
    {"budget", "top_across_layers",
     "The best fraction of all layers' entries stays, whichever heads they are of."},
    {"budget", "released",
     "The dynamic chunk rule of TANGRAM's released code: counts by scores, rounded up to pages, pages given "
     "back after each chunk."},
    {"layout", "paged", "Entries fill pages in order of position; a cached prefix keeps its slots."},
    {"layout", "ring",
     "A fixed number of pages per request and head group; the backend chooses what they hold (StreamingLLM's "
     "and "
     "RaaS's rings)."},
    {"layout", "compact",
     "Retained entries are compacted and keep their rotation; pages after them are freed."},
    {"layout", "compact_rerotate", "As compact, with keys rotated to their new places: never shared."},
    {"layout", "slot_mask",
     "Dropped entries leave empty slots; pages of one token are freed one by one (IntentKV)."},
    {"layout", "page_mask", "Dropped entries are masked; a page is freed when nothing in it is left."},
    {"layout", "ragged",
     "Groups of KV heads have page tables of their own, each as long as its heads need (TANGRAM)."},
    {"precision", "bf16", "Every KV entry is stored as the model computed it."},
    {"precision", "fp8", "E4M3, one byte per value; half of bf16's memory."},
    {"precision", "int4",
     "4 bits per value, scale and zero per `group` channels of a token (precision_options.group: 32, 64, "
     "128); "
     "with per_channel_keys, keys are grouped along 128 tokens instead."},
    {"precision", "fp4", "E2M1 with a power of two per 16 channels: the uniform 4-bit float baseline."},
    {"precision", "kivi_int2",
     "2 bits per value, keys per channel and values per token; the last precision_options.residual_tokens of "
     "a "
     "request stay bf16."},
    {"precision", "triaxial",
     "2 or 4 bits by a token's tag (age of its turn, modality, role): two pools in one address space, "
     "decoded "
     "tokens in int4. precision_options.tag_map names the calibrated map."},
    {"placement", "gpu", "KV lives on the gpu only; what is evicted is computed again."},
    {"placement", "host",
     "Cached prefixes that are about to be evicted are copied to the host; a hit there is recalled by a "
     "transfer that the request waits for."},
    {"placement", "resident",
     "Every page of a request is on the host. The prompt is computed on the gpu; at its end the gpu keeps a "
     "fixed number of resident pages per request, whose content the retrieval chooses step by step."},
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
    {"partition", "flash_decoding",
     "FlashAttention's rule: as many splits, the same for all, as fill whole waves of blocks."},
    {"partition", "flashinfer",
     "The CPU searches the smallest chunk that fits the grid, per layer and step; its time is charged."},
    {"partition", "stream_k", "The device gives each block an equal fraction of all work, by prefix sums."},
    {"partition", "aot",
     "Splits from calibrated budgets, fixed offline and scaled by each request's length; no planning at run "
     "time."},
    {"identity", "shared", "Equal tokens share KV, whoever sent them."},
    {"identity", "session", "Only requests of one session share KV."},
    {"identity", "session_memory",
     "As session; besides, the backend keeps a query memory for each of the 1,024 sessions used last "
     "(IntentKV)."},
    {"identity", "none", "No prefix is ever reused."},
    {"prefix_eviction", "lru", "The prefix that was let go longest ago loses its pages first."},
    {"prefix_eviction", "lfu", "The prefix that was used least often loses its pages first; ties by age."},
    {"prefix_eviction", "session_aware",
     "First what belongs to sessions that have ended or are long overdue, then to those that their clients "
     "say will come back, then to those with a request in the queue; each by age."},
    {"prefix_eviction", "cost_aware",
     "Greedy-Dual-Size-Frequency: uses times the work of computing a token again, on top of the highest "
     "rank that was evicted before the last use."},
};

template <typename T>
struct Choice {
  std::string_view name;
  std::unique_ptr<T> (*make)();
};

constexpr Choice<Placement> kPlacements[] = {
    {"gpu", make_placement_gpu}, {"host", make_placement_host}, {"resident", make_placement_resident}};
constexpr Choice<Retrieval> kRetrievals[] = {{"all", make_retrieval_all},
                                             {"quest", make_retrieval_quest},
                                             {"arkvale", make_retrieval_arkvale},
                                             {"shadowkv", make_retrieval_shadowkv},
                                             {"infinigen", make_retrieval_infinigen},
                                             {"freekv", make_retrieval_freekv}};
constexpr Choice<Identity> kIdentities[] = {{"shared", make_identity_shared},
                                            {"session", make_identity_session},
                                            {"session_memory", make_identity_session_memory},
                                            {"none", make_identity_none}};
constexpr Choice<PrefixEviction> kEvictions[] = {
    {"lru", make_lru_eviction}, {"lfu", make_lfu_eviction}, {"session_aware", make_session_aware_eviction}};

template <typename T, size_t kCount>
std::unique_ptr<T> make(const Choice<T> (&choices)[kCount], std::string_view name) {
  for (const Choice<T>& choice : choices) {
    if (choice.name == name) return choice.make();
  }
  KVT_CHECK(!"a policy name that validate_policy_set() lets pass and no factory knows");
  return nullptr;
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

// The pairs of docs/design/methods/composition.md#pairs that involve formats.
std::optional<std::string> validate_precision(const PolicySet& set, const PolicyAxes& axes,
                                              const CoreConfig& config) {
  const PrecisionSpec& spec = set.precision_spec;
  if (spec.group != 32 && spec.group != 64 && spec.group != 128) {
    return "precision_options.group is " + std::to_string(spec.group) + ", but must be 32, 64 or 128";
  }
  if (spec.bits_above_two > uint64_t{2} << 32) return "precision_options.bits must be between 2 and 4";
  if (spec.per_channel_keys && set.precision == "int4" &&
      (spec.group != kRecordTokens || config.page_tokens % kRecordTokens != 0)) {
    return "precision_options.per_channel_keys packs records of 128 tokens; set precision_options.group: 128 "
           "and page_tokens to a multiple of 128, not " +
           std::to_string(spec.group) + " and " + std::to_string(config.page_tokens);
  }
  if (axes.precision->prompt_format() != Format::kInt2) return std::nullopt;
  if (config.page_tokens % spec.group != 0) {
    return "precision " + set.precision + " packs keys in groups of " + std::to_string(spec.group) +
           " tokens, which must not straddle pages of " + std::to_string(config.page_tokens) +
           "; set page_tokens to a multiple of " + std::to_string(spec.group);
  }
  if (set.precision == "kivi_int2" && (spec.residual_tokens == 0 || spec.residual_tokens % spec.group != 0)) {
    return "precision_options.residual_tokens is " + std::to_string(spec.residual_tokens) +
           ", but must be a multiple of the group, " + std::to_string(spec.group);
  }
  // KV entries may move before they are packed; packed keys share scales with their neighbours.
  const bool moves_packed = axes.scorer->compression_trigger() != CompressionTrigger::kAtNoTime &&
                            axes.scorer->compression_trigger() != CompressionTrigger::kChunkEnd &&
                            !axes.layout->keeps_slots();
  if (moves_packed) {
    return "layout " + set.layout + " moves entries after precision " + set.precision +
           " has packed them in groups, which would quantise them twice; use a layout that keeps slots "
           "(page_mask), a scorer that works at chunk ends, or precision int4";
  }
  return std::nullopt;
}

// Rejects what the Core does not support for int2 and int4 pages in one address space.
std::optional<std::string> validate_pools(const PolicySet& set, const PolicyAxes& axes,
                                          const CoreConfig& config) {
  const PrecisionSpec& spec = set.precision_spec;
  if (axes.placement->uses_host() || axes.placement->uses_resident()) {
    return "precision triaxial keeps pages of two sizes, which no transfer moves yet, but placement is " +
           set.placement + "; set placement: gpu, or precision: int4";
  }
  if (!axes.budget->keeps_all() || set.layout != "paged") {
    const char* const why =
        axes.layout->slot_retention() == SlotRetention::kInPlace
            ? ", which holds tokens from far apart, so dropping would hardly ever empty one"
            : ", of all heads, but what is left is other tokens in each head, and so "
              "other numbers of either format (it would need quotas per format)";
    return "precision triaxial fills pages with entries of one format" + std::string(why) + "; budget " +
           set.budget + " and layout " + set.layout +
           " move or drop them; set budget: all and layout: paged, or precision: int4, which packs what is "
           "left";
  }
  if (!axes.retrieval->reads_everything()) {
    return "precision triaxial fills pages with entries of positions far apart, which retrieval " +
           set.retrieval + " cannot choose among; set retrieval: all, or precision: int4";
  }
  if (config.page_order == PageOrder::kOldestFirst) {
    return "page_order OLDEST_FIRST is one queue of pages, precision triaxial has two pools; set page_order: "
           "LOWEST_FIRST";
  }
  if (spec.ageing == Ageing::kRequantise && !config.prefix_cache) {
    return "precision_options.ageing requantise works on cached prefixes when a turn starts, and "
           "prefix_cache "
           "is false; set prefix_cache: true, or precision_options.ageing: ignore";
  }
  if (config.prefix_cache && axes.identity->shares_across_sessions() && !bits_are_prefix_closed(spec)) {
    return "precision_options.tag_map gives bits by the age of a turn, so a prefix's bits depend on what "
           "follows it, and identity " +
           set.identity +
           " would show one session's to another; set identity: session, or precision_options.ageing: "
           "forecast";
  }
  const uint32_t pages_int4 = config.pages_gpu - std::min(config.pages_int2, config.pages_gpu);
  if (config.watermark_pages >= pages_int4) {
    return std::to_string(pages_int4) + " of " + std::to_string(config.pages_gpu) +
           " pages are int4, and watermark_pages is " + std::to_string(config.watermark_pages) +
           ", so nothing could ever be admitted; give more bits (precision_options.bits) or pages";
  }
  return std::nullopt;
}

// Recall of retained KV entries. Resident pages are shared by all heads, so all heads must retain equally
// many KV entries. An offloaded page must not change, so everything is dropped at once, before the offload.
std::optional<std::string> validate_recall_of_retained(const PolicySet& set, const PolicyAxes& axes,
                                                       const CoreConfig& config) {
  const std::string recalls = "retrieval " + set.retrieval + " recalls pages of all heads";
  if (set.layout != "compact") {
    return recalls + ", of which layout " + set.layout +
           (axes.layout->slot_retention() == SlotRetention::kInPlace ? " leaves pages with holes"
            : axes.layout->keeps_phase()                             ? " has one table for each group of them"
                                                                     : " turns the keys when they move") +
           "; set layout: compact, or retrieval: quest with placement: gpu, or budget: all with layout: "
           "paged";
  }
  if (axes.scorer->compression_trigger() != CompressionTrigger::kPromptEnd) {
    return recalls + " that never change, but scorer " + set.scorer +
           " drops entries more than once; choose a scorer that works at the prompt's end, or retrieval: "
           "quest "
           "with placement: gpu";
  }
  if (config.prefix_cache) {
    return "layout " + set.layout + " moves entries when scorer " + set.scorer +
           " has seen the whole prompt, so its pages on the host cannot be reused; set prefix_cache: "
           "false";
  }
  const RetrievalMethod method = axes.retrieval->method();
  if (method == RetrievalMethod::kShadowkv || method == RetrievalMethod::kInfinigen) {
    return "retrieval " + set.retrieval +
           (method == RetrievalMethod::kShadowkv ? " factorises the keys of a token in all heads together"
                                                 : " learns its columns from all rows of the prompt") +
           ", but each head has entries of its own tokens left; set retrieval: freekv, arkvale or quest, or "
           "budget: all with layout: paged";
  }
  return std::nullopt;
}

// Selection among retained KV entries. A page is summarised when its KV entries no longer move. The summary
// stays valid when KV entries are dropped later: a bound over more keys is still a bound.
std::optional<std::string> validate_retrieval_of_retained(const PolicySet& set, const PolicyAxes& axes,
                                                          const CoreConfig& config) {
  if (axes.layout->slot_retention() == SlotRetention::kAll) return std::nullopt;
  if (axes.placement->uses_resident()) return validate_recall_of_retained(set, axes, config);
  if (axes.layout->slot_retention() == SlotRetention::kRing) {
    return "retrieval " + set.retrieval +
           " chooses whole pages, but layout ring overwrites them KV entry by "
           "KV entry; set layout: compact, ragged or page_mask, or retrieval: all";
  }
  if (axes.layout->slot_retention() == SlotRetention::kMove &&
      axes.scorer->compression_trigger() == CompressionTrigger::kDecodeStep) {
    return "scorer " + set.scorer +
           " moves entries while the request decodes, and no page's summary is rebuilt for "
           "retrieval " +
           set.retrieval + "; choose a scorer that works at chunk or prompt ends, or retrieval: all";
  }
  return std::nullopt;
}

// The pairs of docs/design/methods/composition.md#pairs that involve placement and retrieval.
std::optional<std::string> validate_retrieval(const PolicySet& set, const PolicyAxes& axes,
                                              const CoreConfig& config) {
  if (axes.retrieval->needs_resident() && !axes.placement->uses_resident()) {
    return "retrieval " + set.retrieval + " recalls pages from the host, but placement " + set.placement +
           " keeps none of a running request there; set placement: resident, or retrieval: quest";
  }
  if (axes.placement->uses_resident() && !axes.retrieval->needs_resident()) {
    return "placement resident leaves a request only part of its pages, but retrieval " + set.retrieval +
           " reads all of them on the gpu; set placement: gpu, or a retrieval that recalls (freekv)";
  }
  if (axes.retrieval->reads_everything()) return std::nullopt;
  if (auto problem = validate_retrieval_of_retained(set, axes, config)) return problem;
  if (set.precision != "bf16" && axes.retrieval->needs_resident()) {
    return "retrieval " + set.retrieval + " summarises exact keys, and recall of packed pages (precision " +
           set.precision +
           ") is not built; set precision: bf16, or retrieval: quest, whose pages stay on the gpu";
  }
  return check_retrieval_spec(set.retrieval_spec, axes.retrieval->method(), config.page_tokens);
}

std::optional<std::string> validate_disk(const PolicyAxes& axes, const PolicySet& set,
                                         const CoreConfig& config) {
  if (config.pages_disk == 0) return std::nullopt;
  const std::string has = "the disk tier has " + std::to_string(config.pages_disk) + " pages";
  if (axes.placement->uses_resident() || !axes.placement->uses_host()) {
    return has + " behind a host tier that placement " + set.placement +
           " does not keep for cached prefixes; set placement: host, or 0 pages";
  }
  if (!config.prefix_cache) {
    return has + " for cached prefixes, but there is no prefix cache; set prefix_cache: true, or 0 pages";
  }
  return std::nullopt;
}

// Rejects policies whose pages cannot be copied to the host and restored unchanged.
std::optional<std::string> validate_swap(const PolicyAxes& axes, const PolicySet& set) {
  if (axes.placement->uses_resident() || !axes.placement->uses_host()) {
    return "preemption swap copies a request's pages to the host tier, which placement " + set.placement +
           " does not keep for them; set placement: host, or preemption: recompute";
  }
  if (axes.precision->exact_tokens_max() > 0 || set.precision_spec.per_channel_keys) {
    return "preemption swap copies pages, but precision " + set.precision +
           " keeps a request's newest entries outside them; set preemption: recompute, or another precision";
  }
  return std::nullopt;
}

}  // namespace

std::span<const PolicyInfo> all_policies() {
  static const std::vector<PolicyInfo> all = [] {
    std::vector<PolicyInfo> out;
    for (const ScorerInfo& scorer : all_scorer_infos())
      out.push_back({"scorer", scorer.name, scorer.description});
    out.insert(out.end(), std::begin(kPolicies), std::end(kPolicies));
    return out;
  }();
  return all;
}

PolicyAxes make_axes(const PolicySet& set) {
  PolicyAxes axes{make_scorer(set.scorer, set.scorer_spec),
                  make_budget(set),
                  make_layout(set),
                  make_precision(set.precision, set.precision_spec),
                  make(kPlacements, set.placement),
                  make(kRetrievals, set.retrieval),
                  make_partition(set.partition),
                  make(kIdentities, set.identity)};
  KVT_CHECK(axes.precision != nullptr);
  KVT_CHECK(axes.partition != nullptr);
  return axes;
}

std::unique_ptr<PrefixEviction> make_prefix_eviction(const CoreConfig& config, uint32_t place_tokens) {
  // The only order with a parameter.
  if (config.prefix_eviction == "cost_aware") {
    const uint32_t doubling = config.eviction_doubling_tokens;
    return make_cost_aware_eviction(doubling == 0 ? 0 : std::max(1u, doubling / place_tokens));
  }
  return make(kEvictions, config.prefix_eviction);
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
  if (auto problem = validate_retention(axes, set, config)) return problem;
  if (axes.layout->needs_page_1() && config.page_tokens != 1) {
    return "layout " + set.layout + " frees single tokens and needs page_tokens 1, not " +
           std::to_string(config.page_tokens) + "; set it, or take layout page_mask";
  }
  if (!axes.layout->keeps_slots() && config.prefix_cache) {
    if (auto problem = validate_prefix_checkpoints(axes, set, config)) return problem;
  }
  if (auto problem = validate_precision(set, axes, config)) return problem;
  if (axes.precision->by_tag()) {
    if (auto problem = validate_pools(set, axes, config)) return problem;
  } else if (config.pages_int2 > 0) {
    return std::to_string(config.pages_int2) + " pages are int2, but precision " + set.precision +
           " has one format; set precision: triaxial";
  }
  if (axes.scorer->causality() == Causality::kSuffixDependent && axes.identity->shares_across_sessions()) {
    return "scorer " + set.scorer +
           " keeps entries by what follows them, which would leak one session's view into "
           "another; set identity: session or none";
  }
  if (auto problem = validate_retrieval(set, axes, config)) return problem;
  if (axes.placement->uses_host() && config.pages_host == 0) {
    return "placement " + set.placement +
           " needs a host tier, but it has 0 pages; give it room, or use placement gpu";
  }
  if (config.preemption == PreemptionKind::kSwap) {
    if (auto problem = validate_swap(axes, set)) return problem;
  }
  if (auto problem = validate_disk(axes, set, config)) return problem;
  if (!axes.placement->uses_host() && config.pages_host > 0) {
    return "the host tier has " + std::to_string(config.pages_host) + " pages that placement " +
           set.placement + " never uses; set placement host, or 0 pages";
  }
  return std::nullopt;
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
