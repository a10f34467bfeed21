// RequestProgress counts the tokens of one request. The scheduler writes it and KV managers read it, but for
// passes_left.
//
// Counts run ahead of the backend: they hold once every launched step has ended.

#ifndef KVTWIN_ENGINE_KV_REQUEST_PROGRESS_H_
#define KVTWIN_ENGINE_KV_REQUEST_PROGRESS_H_

#include <algorithm>
#include <cstdint>

namespace kvtwin {

// A request's place in the tables of its engine. Recycled when the request has ended.
using RequestIndex = uint32_t;

struct RequestProgress {
  uint32_t prompt = 0;
  uint32_t output = 0;
  uint32_t computed = 0;  // tokens with KV, reused ones included
  uint32_t sampled = 0;   // output tokens
  bool ending = false;    // cancelled, or sampled end-of-sequence: no further step
  // Passes of probe tokens that must run before its KV is compressed and it decodes. Set by the KvManager
  // that finds a compression due.
  uint32_t passes_left = 0;

  uint32_t known() const { return prompt + sampled; }
  bool decodes_next() const { return passes_left == 0 && computed >= prompt && computed + 1 == known(); }
  // All steps that it needs have been launched.
  bool launched_out() const {
    return ending || (sampled == output && computed >= prompt && passes_left == 0);
  }
};

// TokenBudget is the number of tokens that a step has left for further entries.
struct TokenBudget {
  uint32_t step = 0;         // for a decode
  uint32_t prompt = 0;       // for a prompt
  uint32_t whole_chunk = 0;  // prompts are cut at multiples of it and nowhere else; 0: anywhere

  // Tokens of the request's next entry after `context` tokens; 0: it waits for a step with more budget.
  uint32_t entry_tokens(const RequestProgress& request, uint32_t context, bool decode) const {
    const uint32_t pending = request.known() - context;
    const uint32_t limit = decode ? step : prompt;
    if (whole_chunk == 0 || decode) return std::min(pending, limit);
    // Chunks that are compressed end at the same places whatever else runs
    // (docs/design/methods/composition.md#serving-facts).
    const uint32_t whole = std::min(pending, whole_chunk - context % whole_chunk);
    return whole <= limit ? whole : 0;
  }
};

// The single steps of an engine, as a fence for copies: steps before `touched_until` may still touch pages
// that are free or findable by now: those of preempted requests, of prompts that were reduced to resident
// pages, and of requests that the last of these steps compresses. No copy may use such a page until they have
// ended.
struct StepFence {
  uint64_t launched = 0;  // single steps, ever
  uint64_t done = 0;
  uint64_t touched_until = 0;

  bool closed() const { return touched_until > done; }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_REQUEST_PROGRESS_H_
