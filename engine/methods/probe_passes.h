// ProbePasses lists the passes of probe tokens that score a request's KV entries before they are compressed:
// Judge Q's soft tokens in one pass (docs/design/methods/judge-q.md#inference), or KVzip's repetition of the
// context, part by part (docs/design/methods/uniform.md#kvzip). Policy, prices and engines take them from
// here.
//
// A pass is never divided: its tokens attend to one another, and nothing stores their KV between steps.

#ifndef KVTWIN_ENGINE_METHODS_PROBE_PASSES_H_
#define KVTWIN_ENGINE_METHODS_PROBE_PASSES_H_

#include <cstdint>

#include "engine/base/commands.h"
#include "engine/methods/scorer_spec.h"

namespace kvtwin {

struct PolicySet;

class ProbePasses {
 public:
  ProbePasses() = default;  // none
  static ProbePasses of_soft_tokens(uint32_t tokens);
  // The context begins at position `sinks`. REQUIRES: spec.repeat_tokens > 0.
  static ProbePasses of_repeats(const ScorerSpec& spec, uint32_t sinks);
  // The same where every chunk is compressed at its end: only the newest chunk is repeated, with the `window`
  // tokens before it, which are ranked again.
  ProbePasses by_chunk(uint32_t chunk_tokens, uint32_t window) const;

  bool any() const { return soft_tokens_ > 0 || repeat_tokens_ > 0; }
  // Number of passes that precede the compression of a request with `tokens` tokens.
  uint32_t count(uint32_t tokens) const;
  // REQUIRES: index < count(tokens).
  ProbePass at(uint32_t tokens, uint32_t index) const;
  // The pass that runs next, with `left` passes left. REQUIRES: 0 < left <= count(tokens).
  ProbePass next(uint32_t tokens, uint32_t left) const { return at(tokens, count(tokens) - left); }
  // Tokens that run in a pass.
  uint32_t tokens(const ProbePass& pass) const {
    return soft_tokens_ + instruction_ + (pass.end - pass.repeated);
  }
  uint32_t tokens_max() const;  // of one pass

 private:
  uint32_t soft_tokens_ = 0;
  uint32_t begin(uint32_t tokens) const;  // the first position that is repeated; `tokens` or more: none is

  uint32_t repeat_tokens_ = 0, tail_ = 0, instruction_ = 0, sinks_ = 0;
  uint32_t chunk_tokens_ = 0, window_ = 0;  // 0: the whole context is repeated
};

// The passes of a policy set; none if nothing is ever dropped.
ProbePasses probe_passes(const PolicySet& set);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_PROBE_PASSES_H_
