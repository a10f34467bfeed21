// The roles of a prompt's tokens (docs/design/methods/triaxialkv.md#tags), and what it asks
// (docs/design/methods/intentkv.md#span), from the roles that the trace gives to its spans. With
// replay.chat_template, they come from token ids instead (prompt_tags.h).

#ifndef KVTWIN_TRACES_REPLAY_REPLAY_ROLES_H_
#define KVTWIN_TRACES_REPLAY_REPLAY_ROLES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/base/prompt_spans.h"
#include "engine/base/tags.h"
#include "traces/proto/agent_trace.pb.h"

namespace kvtwin {

// nullopt: the source does not record the role.
std::optional<Semantic> semantic_of(v1::Role role);
// Images and frames of video are images; sound counts as text.
Modal modal_of(v1::Modality modality);

// Span `index` of `table` (0: Session.spans); null: there is none.
using FindSpan = std::function<const v1::Span*(uint32_t table, uint32_t index)>;

struct PromptRoles {
  std::vector<RoleRun> runs;  // prompt_tokens tokens in total; equal neighbours are joined
  // Of these, tokens without a role in the trace; they count as user text of the turn.
  uint64_t unknown_tokens = 0;
};

// The turn of a span is the trace's, at most the request's: only differences to the request's turn matter.
// If the spans have fewer tokens than prompt_tokens, the rest has no role; if they have more, they are cut.
PromptRoles prompt_roles(const v1::LlmRequest& request, const FindSpan& find);

// What the prompt of `prompt_tokens` tokens asks. Span.query_span marks queries. Not known(): no span has the
// role of a user or of a tool's result.
PromptSpans prompt_spans(const v1::LlmRequest& request, uint32_t prompt_tokens, const FindSpan& find);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_REPLAY_ROLES_H_
