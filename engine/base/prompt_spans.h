// PromptSpans locates the parts of a prompt that a policy may treat apart, by the roles of its messages
// (docs/design/methods/intentkv.md#span). engine/base/prompt_span_finder.h finds them.

#ifndef KVTWIN_ENGINE_BASE_PROMPT_SPANS_H_
#define KVTWIN_ENGINE_BASE_PROMPT_SPANS_H_

#include <algorithm>
#include <cstdint>

namespace kvtwin {

// Positions [begin, end).
struct TokenRange {
  uint32_t begin = 0, end = 0;

  uint32_t tokens() const { return end - begin; }
  bool empty() const { return begin == end; }
  // The part below `limit`.
  TokenRange below(uint32_t limit) const { return {std::min(begin, limit), std::min(end, limit)}; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// Invariant, unless all are empty: prefix <= around.begin <= query.begin < query.end <= around.end.
struct PromptSpans {
  uint32_t prefix = 0;  // [0, prefix): system prompt, tool schemas and template before the first message
  TokenRange query;     // the newest message of the user or of a tool
  TokenRange around;    // the same with the template tokens directly before and after it

  bool known() const { return !query.empty(); }  // false: the prompt has no roles
  bool valid(uint32_t prompt_tokens) const {
    return !known() || (prefix <= around.begin && around.begin <= query.begin && query.begin < query.end &&
                        query.end <= around.end && around.end <= prompt_tokens);
  }
  friend bool operator==(const PromptSpans&, const PromptSpans&) = default;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_PROMPT_SPANS_H_
