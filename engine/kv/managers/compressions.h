// Compressions determines when a request's KV is compressed, and what the plan says of it: the range that is
// ranked, the forced positions and the numbers to keep. Layout by layout, a KV manager decides what that does
// to pages.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_COMPRESSIONS_H_
#define KVTWIN_ENGINE_KV_MANAGERS_COMPRESSIONS_H_

#include <cstdint>

#include "engine/kv/launch.h"
#include "engine/methods/retention.h"

namespace kvtwin {

// The compressions of one request since it was admitted.
struct CompressionState {
  bool due = false;      // compress once its prompt is computed
  uint32_t fill = 0;     // tokens known at admission: its prompt, and what a preemption discarded
  uint32_t ranked = 0;   // tokens at the last compression
  uint32_t answers = 0;  // compressions that the backend has not answered yet
  uint32_t attempt = 0;  // admissions
  PromptSpans spans{};   // Retention::spans_of() the request

  // Admitted with a prefix of which `reused` tokens have been ranked.
  void begin(uint32_t known, uint32_t reused) {
    due = true;
    fill = known;
    ranked = reused;
    answers = 0;
    ++attempt;
  }
};

// KV entries that a request holds around one of its entries.
struct LiveEntries {
  uint64_t before = 0;   // with the entry's context
  uint64_t after = 0;    // with its tokens
  uint32_t longest = 0;  // of the longest group, with its tokens
};

class Compressions {
 public:
  explicit Compressions(const Retention* retention) : retention_(*retention) {}

  // PlanEntry::query of the request's chunks.
  TokenRange query(const CompressionState& state) const { return retention_.query(state.spans, state.fill); }
  // Whether the entry ends or begins with a compression. A compression at the end of a prompt or chunk
  // follows its passes of probe tokens: the entry that computes the last token sets progress->passes_left,
  // and the last pass ends with the compression. `progress` includes the entry.
  bool is_due(const PlanEntry& entry, const LiveEntries& live, CompressionState* state,
              RequestProgress* progress) const;
  // Adds the compression of launch->entries[entry]; returns the number of tokens that are ranked or forced.
  uint32_t plan(uint32_t entry, uint32_t tokens, CompressionState* state, Launch* launch) const;
  // Steps from this one on in which a request with `tokens` tokens is certainly not compressed.
  uint32_t steps_left(uint32_t tokens, uint32_t longest) const;

 private:
  bool may_drop(const PlanEntry& entry, const LiveEntries& live, const CompressionState& state,
                uint32_t tokens) const;

  const Retention& retention_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_COMPRESSIONS_H_
