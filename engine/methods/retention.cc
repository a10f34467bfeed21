#include "engine/methods/retention.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/methods/budget_groups.h"

namespace kvtwin {

Retention::Retention(const CoreConfig& config, const PolicyAxes& axes)
    : budget_(*axes.budget),
      slot_retention_(axes.layout->slot_retention()),
      compression_trigger_(axes.budget->keeps_all() ? CompressionTrigger::kAtNoTime
                                                    : axes.scorer->compression_trigger()),
      sinks_(config.policies.budget_spec.sinks),
      window_(config.policies.budget_spec.window),
      forced_(sinks_ + window_),
      chunk_tokens_(config.policies.budget_spec.chunk_tokens),
      interval_(config.policies.budget_spec.interval) {
  const BudgetSpec& spec = config.policies.budget_spec;
  offloaded_ = axes.placement->uses_resident();
  known_ = axes.budget->known_at_admission();
  by_chunk_ =
      slot_retention_ == SlotRetention::kMove && compression_trigger_ == CompressionTrigger::kChunkEnd;
  staged_ = by_chunk_ && known_;
  reserves_ = axes.budget->reserves() && staged_;
  const GroupMap groups = make_groups(config.policies);
  shape_.groups = groups.groups();
  shape_.page_tokens = config.page_tokens;
  shape_.even = spec.uniform_depth;
  if (slot_retention_ != SlotRetention::kRing) return;
  const bool masks = !spec.keeps_all.empty() && config.policies.budget == "head_masks";
  const uint32_t kv_entries = masks ? forced_ : spec.kv_entries;
  shape_.ring_pages = div_ceil(kv_entries, config.page_tokens);
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    // A group is a ring if it retains none of the ranked KV entries; groups that retain all are not.
    const bool ring = !masks || budget_.quota(g, 1'000) == 0;
    shape_.ring.push_back(ring);
    shape_.rings += ring ? 1 : 0;
  }
}

uint64_t Retention::pages_retained(uint32_t tokens, uint32_t raw) const {
  uint64_t pages = 0;
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    pages += div_ceil<uint64_t>(uint64_t{entries_after(g, tokens)} + raw, shape_.page_tokens);
  }
  return pages;
}

uint64_t Retention::pages_raw(uint32_t tokens) const {
  const uint64_t pages = div_ceil<uint64_t>(tokens, shape_.page_tokens);
  const uint64_t ring = std::min<uint64_t>(pages, shape_.ring_pages);
  return (shape_.groups - shape_.rings) * pages + shape_.rings * ring;
}

uint32_t Retention::decode_limit(uint32_t tokens) const {
  uint32_t most = 0;
  for (uint32_t g = 0; g < shape_.groups; ++g) most = std::max(most, entries_after(g, tokens));
  return most + interval_;
}

uint32_t Retention::steps_until_full(uint32_t tokens) const {
  const uint32_t full = shape_.ring_pages * shape_.page_tokens;
  if (shape_.rings == 0 || ring_full(tokens)) return UINT32_MAX;
  return tokens < full ? full - tokens : 1;  // some groups are rings and others grow: the mean grows unevenly
}

bool Retention::can_drop(uint32_t tokens, uint64_t live) const {
  if (!known_) return ranked(tokens) > 0;
  uint64_t after = 0;
  for (uint32_t g = 0; g < shape_.groups; ++g) after += entries_after(g, tokens);
  return after < live;
}

namespace {

std::optional<std::string> validate_compression_trigger(const PolicyAxes& axes, const PolicySet& set,
                                                        const CoreConfig& config) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  const CompressionTrigger compression_trigger = axes.scorer->compression_trigger();
  const BudgetSpec& spec = set.budget_spec;
  if (compression_trigger == CompressionTrigger::kTurnStart &&
      axes.layout->slot_retention() != SlotRetention::kInPlace) {
    return "scorer " + set.scorer +
           " works at the start of a turn, on the prefix that a request begins with, which layout " +
           set.layout + " does not share; choose layout page_mask or slot_mask";
  }
  if (compression_trigger == CompressionTrigger::kTurnStart && !config.prefix_cache) {
    return "scorer " + set.scorer +
           " works at the start of a turn, on the prefix that a request begins with, but prefix_cache is "
           "false; "
           "set it, or choose another compression trigger";
  }
  if (compression_trigger == CompressionTrigger::kDecodeStep && !axes.budget->known_at_admission()) {
    return "scorer " + set.scorer + " works at decode steps, where budget " + set.budget +
           " does not say when there are too many KV entries; choose budget uniform, ratio or pyramid";
  }
  if (axes.budget->reserves() && compression_trigger != CompressionTrigger::kChunkEnd) {
    return "scorer " + set.scorer + " needs the whole prompt before it drops anything, but budget " +
           set.budget +
           " reserves pages only for retained KV entries; choose a scorer that works at chunk ends, or "
           "budget ratio";
  }
  if (compression_trigger == CompressionTrigger::kChunkEnd) {
    if (axes.layout->slot_retention() == SlotRetention::kInPlace) {
      return "layout " + set.layout +
             " drops KV entries where they are once the prompt is known, but scorer " + set.scorer +
             " works at chunk ends; choose layout compact or ragged";
    }
    uint32_t room = config.step_tokens_max;
    if (config.batch_order == BatchOrder::kMixed) room /= 2;
    if (config.chunk_tokens_max > 0) room = std::min(room, config.chunk_tokens_max);
    if (spec.chunk_tokens > room) {
      return "chunks of " + number(spec.chunk_tokens) +
             " tokens are compressed whole, but a step takes only " + number(room) +
             " tokens of a prompt; set chunk_tokens to that or less, or raise the step's limit";
    }
  }
  if (spec.uniform_depth && compression_trigger == CompressionTrigger::kChunkEnd &&
      axes.budget->known_at_admission()) {
    return "uniform_depth tops up what a dynamic budget has given back, but budget " + set.budget +
           " gives nothing back; choose budget released, or uniform_depth: false";
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> validate_retention(const PolicyAxes& axes, const PolicySet& set,
                                              const CoreConfig& config) {
  const SlotRetention slot_retention = axes.layout->slot_retention();
  const bool keeps_all = axes.budget->keeps_all();
  if (slot_retention == SlotRetention::kRing) {
    if (set.budget != "uniform" && set.budget != "head_masks") {
      return "layout ring has a fixed number of pages per request, which budget " + set.budget +
             " does not say; choose budget uniform or head_masks";
    }
    const BudgetSpec& spec = set.budget_spec;
    if (set.budget == "head_masks" && spec.sinks + spec.window == 0) {
      return "layout ring gives the heads that budget head_masks names no room at all: sinks and window are "
             "both 0; raise one of them";
    }
    return std::nullopt;
  }
  if (keeps_all) {
    if (slot_retention == SlotRetention::kAll) return std::nullopt;
    return "layout " + set.layout +
           " has nothing to do while budget all keeps every KV entry; choose layout "
           "paged, or another budget";
  }
  if (axes.scorer->compression_trigger() == CompressionTrigger::kAtNoTime) {
    return "budget " + set.budget + " drops KV entries, but scorer " + set.scorer +
           " ranks nothing; choose a scorer, or budget all";
  }
  if (slot_retention == SlotRetention::kAll) {
    return "budget " + set.budget + " drops KV entries, but layout " + set.layout +
           " has no way to let go of them; choose layout compact, ragged, slot_mask or page_mask";
  }
  if (axes.placement->uses_host() &&
      !axes.placement->uses_resident()) {  // resident: see validate_retrieval_of_retained()
    return "placement " + set.placement + " copies whole pages of a prefix, which layout " + set.layout +
           " does not keep; use placement gpu";
  }
  if (slot_retention == SlotRetention::kInPlace && axes.identity->shares_across_sessions()) {
    return "layout " + set.layout +
           " drops KV entries of shared prefixes, which would leak one session's view into another; set "
           "identity: session or none";
  }
  if (slot_retention == SlotRetention::kInPlace && !axes.budget->known_at_admission()) {
    return "budget " + set.budget + " gives heads different counts, but layout " + set.layout +
           " drops a token from all heads at once; choose layout ragged, or budget uniform or ratio";
  }
  if (!axes.layout->has_groups() && set.budget != "ratio" && set.budget != "uniform") {
    return "budget " + set.budget + " gives heads different counts, but layout " + set.layout +
           " has one page table for all of them; choose layout ragged, or budget uniform or ratio";
  }
  return validate_compression_trigger(axes, set, config);
}

std::optional<std::string> validate_prefix_checkpoints(const PolicyAxes& axes, const PolicySet& set,
                                                       const CoreConfig& config) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  const BudgetSpec& spec = set.budget_spec;
  if (axes.layout->slot_retention() != SlotRetention::kMove || !axes.layout->keeps_phase()) {
    return "layout " + set.layout + (axes.layout->keeps_phase() ? " overwrites" : " rotates") +
           " KV entries, so a cached prefix cannot be reused; set prefix_cache: false, or layout: compact";
  }
  if (axes.scorer->compression_trigger() != CompressionTrigger::kChunkEnd) {
    return "layout " + set.layout + " moves KV entries when scorer " + set.scorer +
           " has seen the whole prompt, so what is left of a prefix depends on what follows it and cannot be "
           "reused; set prefix_cache: false, or a scorer that works at chunk ends";
  }
  if (axes.scorer->causality() != Causality::kPrefixClosed) {
    return "scorer " + set.scorer + " keeps KV entries by what follows them, so what layout " + set.layout +
           " has left of a prefix cannot be reused; set prefix_cache: false, scorer_options.window_closed: "
           "true where the scorer has a window, or another scorer";
  }
  if (spec.chunk_tokens % config.unit_tokens != 0) {
    return "compressed prefixes end with chunks of " + number(spec.chunk_tokens) +
           " tokens, but the trace tells prefixes apart by units of " + number(config.unit_tokens) +
           "; set budget_options.chunk_tokens to a multiple of it, or prefix_cache: false";
  }
  if (config.page_order == PageOrder::kOldestFirst) {
    return "page_order OLDEST_FIRST is one queue of pages by age, but a compressed prefix goes as a whole; "
           "set "
           "page_order: LOWEST_FIRST, or prefix_cache: false";
  }
  if (!axes.retrieval->reads_everything()) {
    return "retrieval " + set.retrieval +
           " summarises pages, and nobody copies the summaries of a compressed prefix yet; set retrieval: "
           "all, "
           "or prefix_cache: false";
  }
  if (axes.precision->exact_tokens_max() > 0) {
    return "precision " + set.precision +
           " keeps a request's newest KV entries outside its pages, which a compressed prefix would lack; "
           "set "
           "prefix_cache: false, or another precision";
  }
  if (axes.budget->known_at_admission()) return std::nullopt;
  if (config.admission == AdmissionKind::kFullReservation) {
    return "admission FULL_RESERVATION sets pages aside for what budget " + set.budget +
           " may leave, which does not count the copies of compressed prefixes; set admission: WATERMARK, or "
           "prefix_cache: false";
  }
  if (spec.chunk_tokens <= spec.sinks + spec.window) {
    return "chunks of " + number(spec.chunk_tokens) + " tokens are all sinks and window (" +
           number(spec.sinks + spec.window) +
           "), so nothing of them is compressed; set budget_options.chunk_tokens higher, or prefix_cache: "
           "false";
  }
  return std::nullopt;
}

}  // namespace kvtwin
