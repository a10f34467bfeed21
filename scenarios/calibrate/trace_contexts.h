// Prompts of a scenario's trace as token ids, with the outputs that the trace implies: the input of
// calibrations.
//
// Requests are chosen evenly over the trace (of n that qualify, number i * n / count), so that no session
// dominates; the choice is deterministic. Tokens are those that the CPU engine would compute for the requests
// (engine/common/token_ids.h).

#ifndef KVTWIN_SCENARIOS_CALIBRATE_TRACE_CONTEXTS_H_
#define KVTWIN_SCENARIOS_CALIBRATE_TRACE_CONTEXTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/prompt_spans.h"
#include "engine/base/tags.h"
#include "scenarios/app/compose.h"

namespace kvtwin {

struct TraceContext {
  uint32_t session = 0, node = 0;  // in the file
  std::vector<uint32_t> prompt, output;
  PromptSpans spans;  // of the prompt, if the scenario's scorer reads roles
};

struct ContextChoice {
  uint32_t count = 16;
  uint32_t tokens_min = 1, tokens_max = 4'096;  // of prompts; others are left out
  uint32_t output_min = 0;                      // of outputs
};

// In file order. Errors: no request qualifies. REQUIRES: `composed` has not run: its Client is consumed.
Result<std::vector<TraceContext>> trace_contexts(const Scenario& scenario, Composed* composed,
                                                 const ContextChoice& choice);

// The roles of the prompt tokens of each context, as a run of the scenario finds them: from its token ids, in
// replay.chat_template, or from the trace. Errors: the trace has no role for some tokens.
struct ContextRoles {
  std::vector<RoleRun> runs;
  uint32_t turn = 0;  // of the request
};
Result<std::vector<ContextRoles>> context_roles(const Scenario& scenario,
                                                const std::vector<TraceContext>& contexts);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_TRACE_CONTEXTS_H_
