// Retention combines budget, layout and scorer of an engine into numbers: when a request's KV is compressed,
// and how many KV entries each head group holds afterwards. It has no state of requests.
//
// With n tokens computed, the first `sinks` and the last `window` are forced. The others are ranked, and a
// group retains sinks + window + quota(ranked) KV entries
// (docs/design/methods/tangram.md#chunks, #reservation).
//
// Scorers that read roles force the template and the query of a request instead, where its prompt has roles
// (docs/design/methods/intentkv.md#span). Functions that take PromptSpans serve both.

#ifndef KVTWIN_ENGINE_METHODS_RETENTION_H_
#define KVTWIN_ENGINE_METHODS_RETENTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/commands.h"
#include "engine/base/events.h"
#include "engine/kv/group_tables.h"
#include "engine/methods/axes.h"
#include "engine/methods/config.h"
#include "engine/methods/probe_passes.h"

namespace kvtwin {

// The query of a prompt without roles, if the budget has no window: its last tokens
// (docs/design/methods/intentkv.md#span, the fallback).
constexpr uint32_t kQueryTokens = 64;

// The positions that a compression retains whatever their score: [0, prefix) and `newest`.
struct ForcedTokens {
  uint32_t prefix = 0;
  TokenRange newest;
  TokenRange query;      // within `newest`
  bool by_role = false;  // found by the roles of messages; false: by the budget's counts

  uint32_t total() const { return prefix + newest.tokens(); }
};

class Retention {
 public:
  // REQUIRES: validate_retention() returns nullopt. `axes` must outlive it.
  Retention(const CoreConfig& config, const PolicyAxes& axes);

  SlotRetention slot_retention() const { return slot_retention_; }
  bool keeps_all() const { return slot_retention_ == SlotRetention::kAll; }
  // Pages belong to (request, group), not to positions. False with resident pages: there is then one group,
  // and its KV manager counts the pages of the retained context (ResidentKvManager).
  bool by_group() const {
    return !offloaded_ &&
           (slot_retention_ == SlotRetention::kMove || slot_retention_ == SlotRetention::kRing);
  }
  // Page tables of a request.
  uint32_t tables() const { return by_group() ? shape_.groups : 1; }
  // Prompt chunks end at multiples of chunk_tokens() and are never shortened.
  bool by_chunk() const { return by_chunk_; }
  uint32_t chunk_tokens() const { return chunk_tokens_; }
  // The same if prompts must be cut there; 0: anywhere.
  uint32_t whole_chunk_tokens() const { return by_chunk_ ? chunk_tokens_ : 0; }
  // The counts of every compression are known when it is requested.
  bool known() const { return known_; }
  // Tokens of a chunk are staged: only retained KV entries are written to pages.
  bool staged() const { return staged_; }
  // Admission reserves the pages of retained KV entries.
  bool reserves() const { return reserves_; }
  // Compressions also take place at decode steps.
  bool at_decode() const { return compression_trigger_ == CompressionTrigger::kDecodeStep; }
  // The prefix that a request reuses is compressed before its first tokens are computed.
  bool at_turn_start() const { return compression_trigger_ == CompressionTrigger::kTurnStart; }
  bool at_prompt_end() const {
    return compression_trigger_ == CompressionTrigger::kPromptEnd ||
           compression_trigger_ == CompressionTrigger::kDecodeStep;
  }
  // Passes of probe tokens that precede a compression at the end of a prompt or chunk.
  const ProbePasses& passes() const { return passes_; }
  const GroupShape& shape() const { return shape_; }

  // At the end of a chunk, with `tokens` tokens: the newest KV entries of a group, which the next chunk's
  // compression ranks again. KV entries before them never move again.
  uint32_t carried(uint32_t tokens) const { return ranked(tokens) > 0 ? window_ : UINT32_MAX; }
  uint32_t ranked(uint32_t tokens) const { return tokens > forced_ ? tokens - forced_ : 0; }
  uint32_t quota(uint32_t group, uint32_t ranked_tokens) const { return budget_.quota(group, ranked_tokens); }

  // What the scorer reads of a request's roles. Empty: nothing, or the prompt has none.
  PromptSpans spans_of(const RequestReady& request) const {
    return reads_roles_ ? request.spans : PromptSpans{};
  }
  // The positions whose queries are remembered of a prompt of `tokens` tokens; empty: none are.
  TokenRange query(const PromptSpans& spans, uint32_t tokens) const;
  // The forced positions below `tokens`.
  ForcedTokens forced(const PromptSpans& spans, uint32_t tokens) const;
  // The same quota for `ranked_tokens` tokens next to these forced ones. A budget of a number of entries
  // counts the query, and the template unless sinks_free.
  uint32_t quota(uint32_t group, const ForcedTokens& forced, uint32_t ranked_tokens) const;
  // KV entries of a group when `tokens` tokens have been ranked, for budgets with known counts.
  uint32_t entries_after(uint32_t group, uint32_t tokens, const PromptSpans& spans = {}) const {
    if (spans.known()) return entries_by_role(group, tokens, spans);
    return tokens <= forced_ ? tokens : forced_ + budget_.quota(group, tokens - forced_);
  }
  // Pages of all groups for `tokens` ranked prompt tokens and `raw` further tokens.
  uint64_t pages_retained(uint32_t tokens, uint32_t raw) const;
  // Pages of all groups for tokens of which none was dropped.
  uint64_t pages_raw(uint32_t tokens) const;

  // The largest number of pages that a request can need, whenever it is preempted.
  uint64_t pages_needed(uint32_t prompt, uint32_t output) const {
    return staged_ ? pages_retained(prompt, output) : pages_raw(prompt + output);
  }

  // At decode steps: a request is compressed when a group holds this many KV entries.
  uint32_t decode_limit(uint32_t tokens) const;
  // Whether ranking the `live` KV entries of `tokens` tokens can drop any.
  bool can_drop(uint32_t tokens, uint64_t live, const PromptSpans& spans = {}) const;

  // Whether every group is a full ring when `tokens` tokens are computed.
  bool ring_full(uint32_t tokens) const {
    return shape_.rings == shape_.groups && tokens >= shape_.ring_pages * shape_.page_tokens;
  }
  // Decode steps from `tokens` tokens on that all add the same number of KV entries to a head: one, or none.
  uint32_t steps_until_full(uint32_t tokens) const;

  uint32_t sinks() const { return sinks_; }
  uint32_t window() const { return window_; }

 private:
  uint32_t entries_by_role(uint32_t group, uint32_t tokens, const PromptSpans& spans) const;

  const Budget& budget_;
  const SlotRetention slot_retention_;
  const CompressionTrigger compression_trigger_;
  const uint32_t sinks_, window_, forced_, chunk_tokens_, interval_;
  const uint32_t forced_in_number_;  // of `forced_`, those that a budget of a number of entries counts
  const bool sinks_free_, numbered_, reads_roles_;
  bool offloaded_ = false, by_chunk_ = false, known_ = false, staged_ = false, reserves_ = false;
  GroupShape shape_;
  ProbePasses passes_;
};

// Returns one sentence about numbers of budget and chunks with which nothing could work, and a remedy;
// nullopt: none. Which budgets, layouts and scorers go together: combinations.h.
std::optional<std::string> validate_retention(const PolicyAxes& axes, const PolicySet& set,
                                              const CoreConfig& config);

// The same for layouts that move KV entries with a prefix cache. REQUIRES: config.prefix_cache, and a layout
// that does not keep slots.
std::optional<std::string> validate_prefix_checkpoints(const PolicyAxes& axes, const PolicySet& set,
                                                       const CoreConfig& config);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_RETENTION_H_
