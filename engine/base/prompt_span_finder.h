// PromptSpanFinder reads the messages of a prompt, in order, and locates what the prompt asks
// (docs/design/methods/intentkv.md#span).
//
//   prefix  instructions and template tokens before anything else
//   query   the newest message of the user or of a tool. Of user messages without model output or a tool's
//           result between them, one that the trace marks as a query precedes those without a mark.
//           Neighbouring spans of one kind, with nothing but template tokens between them, are one message.
//   around  the query with the template tokens at its sides: the header of its role, the end of the message,
//           and the header of the answer
//
// A longer message counts by its last kQueryTokensMax tokens: engines capture a query for each of them, and a
// tool's result may exceed the budget of everything retained. Tokens without a role are passed over.

#ifndef KVTWIN_ENGINE_BASE_PROMPT_SPAN_FINDER_H_
#define KVTWIN_ENGINE_BASE_PROMPT_SPAN_FINDER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/prompt_spans.h"
#include "engine/base/tags.h"

namespace kvtwin {

constexpr uint32_t kQueryTokensMax = 256;

class PromptSpanFinder {
 public:
  // The next `tokens` tokens of the prompt. nullopt: they have no role. `marked`: the trace says that they
  // are a query.
  void add(std::optional<Semantic> semantic, bool marked, uint32_t tokens);
  // The spans of the prompt so far; not known() if it has no message of the user or of a tool.
  PromptSpans find() const;

 private:
  struct Piece {
    std::optional<Semantic> semantic;
    bool marked = false;
    uint32_t begin = 0, end = 0;

    bool is(Semantic one) const { return semantic == one; }
  };
  size_t newest_message(size_t first) const;

  std::vector<Piece> pieces_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_PROMPT_SPAN_FINDER_H_
