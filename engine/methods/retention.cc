#include "engine/methods/retention.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/scorer_traits.h"

namespace kvtwin {

Retention::Retention(const CoreConfig& config, const PolicyAxes& axes)
    : budget_(*axes.budget),
      slot_retention_(axes.layout.slot_retention),
      compression_trigger_(axes.budget->keeps_all() ? CompressionTrigger::kAtNoTime
                                                    : axes.scorer->compression_trigger()),
      sinks_(config.policies.budget_spec.sinks),
      window_(config.policies.budget_spec.window),
      forced_(sinks_ + window_),
      chunk_tokens_(config.policies.budget_spec.chunk_tokens),
      interval_(config.policies.budget_spec.interval),
      forced_in_number_(forced_kv_entries(config.policies.budget_spec)),
      sinks_free_(config.policies.budget_spec.sinks_free),
      numbered_(budget_traits(config.policies.budget).entries),
      reads_roles_(scorer_traits(config.policies.scorer).reads_roles) {
  const BudgetSpec& spec = config.policies.budget_spec;
  offloaded_ = axes.placement.uses_resident;
  known_ = axes.budget->known_at_admission();
  by_chunk_ =
      slot_retention_ == SlotRetention::kMove && compression_trigger_ == CompressionTrigger::kChunkEnd;
  staged_ = by_chunk_ && known_;
  reserves_ = axes.budget->reserves() && staged_;
  const GroupMap groups = make_groups(config.policies);
  shape_.groups = groups.groups();
  shape_.page_tokens = config.page_tokens;
  shape_.even = spec.uniform_depth;
  if (at_prompt_end()) passes_ = axes.scorer->passes(sinks_);
  if (by_chunk_ && !staged_) passes_ = axes.scorer->passes(sinks_).by_chunk(chunk_tokens_, window_);
  if (slot_retention_ != SlotRetention::kRing) return;
  const bool masks =
      !spec.keeps_all.empty() && budget_traits(config.policies.budget).table == HeadTable::kMasks;
  const uint32_t kv_entries = masks ? forced_ : spec.kv_entries;
  shape_.ring_pages = div_ceil(kv_entries, config.page_tokens);
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    // A group is a ring if it retains none of the ranked KV entries; groups that retain all are not.
    const bool ring = !masks || budget_.quota(g, 1'000) == 0;
    shape_.ring.push_back(ring);
    shape_.rings += ring ? 1 : 0;
  }
}

TokenRange Retention::query(const PromptSpans& spans, uint32_t tokens) const {
  if (!reads_roles_) return {};
  if (spans.known()) return spans.query;
  return {tokens - std::min(tokens, window_ > 0 ? window_ : kQueryTokens), tokens};
}

ForcedTokens Retention::forced(const PromptSpans& spans, uint32_t tokens) const {
  if (spans.known()) {
    const uint32_t template_end = std::min(std::max(spans.prefix, sinks_), spans.around.begin);
    return {std::min(template_end, tokens), spans.around.below(tokens), spans.query.below(tokens), true};
  }
  const uint32_t prefix = std::min(sinks_, tokens);
  const TokenRange newest{std::max(tokens - std::min(window_, tokens), prefix), tokens};
  return {prefix, newest, newest, false};
}

uint32_t Retention::quota(uint32_t group, const ForcedTokens& forced, uint32_t ranked_tokens) const {
  if (!forced.by_role || !numbered_) return budget_.quota(group, ranked_tokens);
  const uint64_t number = uint64_t{budget_.quota(group, UINT32_MAX)} + forced_in_number_;
  const uint32_t counted = sinks_free_ ? forced.query.tokens() : forced.total();
  return static_cast<uint32_t>(std::min<uint64_t>(ranked_tokens, number > counted ? number - counted : 0));
}

uint32_t Retention::entries_by_role(uint32_t group, uint32_t tokens, const PromptSpans& spans) const {
  const ForcedTokens kept = forced(spans, tokens);
  return kept.total() + quota(group, kept, tokens - kept.total());
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

bool Retention::can_drop(uint32_t tokens, uint64_t live, const PromptSpans& spans) const {
  if (!known_) return tokens > forced(spans, tokens).total();
  uint64_t after = 0;
  for (uint32_t g = 0; g < shape_.groups; ++g) after += entries_after(g, tokens, spans);
  return after < live;
}

std::optional<std::string> validate_retention(const PolicyAxes& axes, const PolicySet& set,
                                              const CoreConfig& config) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  const BudgetSpec& spec = set.budget_spec;
  if (axes.budget->keeps_all()) return std::nullopt;
  if (axes.layout.slot_retention == SlotRetention::kRing) {
    if (budget_traits(set.budget).table == HeadTable::kMasks && spec.sinks + spec.window == 0) {
      return "layout ring gives the heads that budget " + set.budget +
             " names no room at all: sinks and window are both 0; raise one of them";
    }
    return std::nullopt;
  }
  if (axes.scorer->compression_trigger() != CompressionTrigger::kChunkEnd) return std::nullopt;
  uint32_t room = config.step_tokens_max;
  if (config.batch_order == BatchOrder::kMixed) room /= 2;
  if (config.chunk_tokens_max > 0) room = std::min(room, config.chunk_tokens_max);
  if (spec.chunk_tokens > room) {
    return "chunks of " + number(spec.chunk_tokens) + " tokens are compressed whole, but a step takes only " +
           number(room) + " tokens of a prompt; set chunk_tokens to that or less, or raise the step's limit";
  }
  if (spec.uniform_depth && axes.budget->known_at_admission()) {
    return "uniform_depth tops up what a dynamic budget has given back, but budget " + set.budget +
           " gives nothing back; choose budget released, or uniform_depth: false";
  }
  return std::nullopt;
}

std::optional<std::string> validate_prefix_checkpoints(const PolicyAxes& axes, const PolicySet& set,
                                                       const CoreConfig& config) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  const BudgetSpec& spec = set.budget_spec;
  if (spec.chunk_tokens % config.unit_tokens != 0) {
    return "compressed prefixes end with chunks of " + number(spec.chunk_tokens) +
           " tokens, but the trace tells prefixes apart by units of " + number(config.unit_tokens) +
           "; set budget_options.chunk_tokens to a multiple of it, or prefix_cache: false";
  }
  if (!axes.budget->known_at_admission() && spec.chunk_tokens <= spec.sinks + spec.window) {
    return "chunks of " + number(spec.chunk_tokens) + " tokens are all sinks and window (" +
           number(spec.sinks + spec.window) +
           "), so nothing of them is compressed; set budget_options.chunk_tokens higher, or prefix_cache: "
           "false";
  }
  return std::nullopt;
}

}  // namespace kvtwin
