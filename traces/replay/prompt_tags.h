// What policies read of the tokens of a prompt, where it is found by token ids when a request is sent, and
// not by the roles of the trace's spans when the trace is read (replay_roles.h).

#ifndef KVTWIN_TRACES_REPLAY_PROMPT_TAGS_H_
#define KVTWIN_TRACES_REPLAY_PROMPT_TAGS_H_

#include <cstdint>
#include <vector>

#include "engine/base/prompt_spans.h"
#include "engine/base/tags.h"

namespace kvtwin {

struct PromptTags {
  std::vector<RoleRun> roles;
  uint32_t turn = 0;  // of the request; no role's turn is larger
  PromptSpans spans;
};

class PromptTagSource {
 public:
  virtual ~PromptTagSource() = default;
  // Of the request that is node `node` of session `session` of the file.
  virtual PromptTags tags(uint32_t session, uint32_t node) = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_PROMPT_TAGS_H_
