// Retention says when a request's KV is compressed and how much each head group holds afterwards: budget,
// layout and scorer of an engine, joined into numbers. It keeps no state of requests.
//
// With n tokens computed, the forced ones are the first `sinks` and the last `window`; the others are
// ranked, and a group is left with sinks + window + quota(ranked) KV entries
// (docs/design/methods/tangram.md#chunks, #reservation).

#ifndef KVTWIN_ENGINE_METHODS_RETENTION_H_
#define KVTWIN_ENGINE_METHODS_RETENTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/commands.h"
#include "engine/kv/group_tables.h"
#include "engine/methods/axes.h"
#include "engine/methods/config.h"

namespace kvtwin {

class Retention {
 public:
  // REQUIRES: validate_retention() found nothing. `axes` must outlive it.
  Retention(const CoreConfig& config, const PolicyAxes& axes);

  SlotRetention slot_retention() const { return slot_retention_; }
  bool keeps_all() const { return slot_retention_ == SlotRetention::kAll; }
  // Pages belong to (request, group), not to positions. Not with resident pages: there is one group then, and
  // the Core counts the pages of what is left of a context (core_resident.cc).
  bool by_group() const {
    return !offloaded_ &&
           (slot_retention_ == SlotRetention::kMove || slot_retention_ == SlotRetention::kRing);
  }
  // Prompt chunks end at multiples of chunk_tokens() and are never cut.
  bool by_chunk() const { return by_chunk_; }
  uint32_t chunk_tokens() const { return chunk_tokens_; }
  // Counts of every compression are known when it is asked for.
  bool known() const { return known_; }
  // Rows of a chunk are staged, so that only what is kept ever has pages.
  bool staged() const { return staged_; }
  // Admission sets aside the pages of what is kept.
  bool reserves() const { return reserves_; }
  // Sinks and the like follow one another: at decode steps too.
  bool at_decode() const { return compression_trigger_ == CompressionTrigger::kDecodeStep; }
  // What a request begins with is cut before its first tokens are computed.
  bool at_turn_start() const { return compression_trigger_ == CompressionTrigger::kTurnStart; }
  bool at_prompt_end() const {
    return compression_trigger_ == CompressionTrigger::kPromptEnd ||
           compression_trigger_ == CompressionTrigger::kDecodeStep;
  }
  const GroupShape& shape() const { return shape_; }

  // At the end of a chunk, with `tokens` tokens: newest KV entries of a group that the next chunk's
  // compression ranks again. KV entries before them are never moved.
  uint32_t carried(uint32_t tokens) const { return ranked(tokens) > 0 ? window_ : UINT32_MAX; }
  uint32_t ranked(uint32_t tokens) const { return tokens > forced_ ? tokens - forced_ : 0; }
  uint32_t quota(uint32_t group, uint32_t ranked_tokens) const { return budget_.quota(group, ranked_tokens); }
  // KV entries of a group when `tokens` tokens have been ranked, for budgets that are known.
  uint32_t entries_after(uint32_t group, uint32_t tokens) const {
    return tokens <= forced_ ? tokens : forced_ + budget_.quota(group, tokens - forced_);
  }
  // Pages of all groups for prompt tokens that were ranked and `raw` tokens behind them.
  uint64_t pages_retained(uint32_t tokens, uint32_t raw) const;
  // Pages of all groups for tokens that nothing was dropped of.
  uint64_t pages_raw(uint32_t tokens) const;

  // The most pages that a request can come to need, whenever it is preempted.
  uint64_t pages_needed(uint32_t prompt, uint32_t output) const {
    return staged_ ? pages_retained(prompt, output) : pages_raw(prompt + output);
  }

  // At decode steps: a group of `kv_entries` KV entries is cut once it holds so many.
  uint32_t decode_limit(uint32_t tokens) const;
  // Whether ranking `live` KV entries of `tokens` tokens can drop any.
  bool can_drop(uint32_t tokens, uint64_t live) const;

  // With `tokens` tokens computed, every group is a ring that is full.
  bool ring_full(uint32_t tokens) const {
    return shape_.rings == shape_.groups && tokens >= shape_.ring_pages * shape_.page_tokens;
  }
  // Decode steps from `tokens` tokens on that each add as many KV entries to a head: one, or none.
  uint32_t steps_until_full(uint32_t tokens) const;

  uint32_t sinks() const { return sinks_; }
  uint32_t window() const { return window_; }

 private:
  const Budget& budget_;
  const SlotRetention slot_retention_;
  const CompressionTrigger compression_trigger_;
  const uint32_t sinks_, window_, forced_, chunk_tokens_, interval_;
  bool offloaded_ = false, by_chunk_ = false, known_ = false, staged_ = false, reserves_ = false;
  GroupShape shape_;
};

// A sentence that says why budget, layout and scorer cannot work together, and the way out.
std::optional<std::string> validate_retention(const PolicyAxes& axes, const PolicySet& set,
                                              const CoreConfig& config);

// Likewise, where a layout moves KV entries and prefixes are to be cached: why what such requests keep of a
// prefix cannot be shared. REQUIRES: config.prefix_cache, and a layout that does not keep slots.
std::optional<std::string> validate_prefix_checkpoints(const PolicyAxes& axes, const PolicySet& set,
                                                       const CoreConfig& config);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_RETENTION_H_
