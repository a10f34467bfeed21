// What the tokens of a prompt are (docs/design/methods/triaxialkv.md#tags), from the roles that the trace
// itself gives to its spans. Where a trace has token ids and no roles, engine/methods/role_tagger.h finds
// them.

#ifndef KVTWIN_TRACES_REPLAY_REPLAY_ROLES_H_
#define KVTWIN_TRACES_REPLAY_REPLAY_ROLES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/tags.h"
#include "traces/proto/agent_trace.pb.h"

namespace kvtwin {

// Span `index` of `table` (0: the session's arena); nullptr: there is none.
using FindSpan = std::function<const v1::Span*(uint32_t table, uint32_t index)>;

struct PromptRoles {
  std::vector<RoleRun> runs;    // prompt_tokens tokens in all, equal neighbours joined
  uint64_t unknown_tokens = 0;  // of them, without a role in the trace: counted as user text of the turn
};

// A span's turn is kept as the trace counts it, at most the request's: only differences to call.turn matter.
// Images and frames of video are images; sound counts as text. Where the spans hold fewer tokens than the
// request's prompt_tokens, which is authoritative, the rest has no role; where they hold more, they are cut.
PromptRoles prompt_roles(const v1::LlmRequest& request, const FindSpan& find);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_REPLAY_ROLES_H_
