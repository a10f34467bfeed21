// The requests of one agent's log: which records belong together, and how many tokens each of their blocks
// has.

#ifndef KVTWIN_TRACES_IMPORTERS_CLAUDE_REQUESTS_H_
#define KVTWIN_TRACES_IMPORTERS_CLAUDE_REQUESTS_H_

#include <cstdint>
#include <vector>

#include "traces/importers/claude_log.h"

namespace kvtwin::claude {

struct Request {
  std::vector<const Record*> answer;  // the records of one message
  std::vector<const Record*> inputs;  // user records since the previous request
  bool compacted = false;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;  // as recorded
  bool failed() const { return answer.front()->api_error; }
};

struct PlacedBlock {  // a block with its time and record
  const Block* block;
  const Record* record;
};

std::vector<PlacedBlock> blocks_of(const std::vector<const Record*>& records);
// Estimated from the lengths alone.
uint64_t tokens_in(const std::vector<PlacedBlock>& said);
// Divides `total` among the blocks by length. Each block gets at least one token, while there are any.
std::vector<uint32_t> divide(uint64_t total, const std::vector<PlacedBlock>& said);

// The answers in the records of one agent (at least one record), each with the input before it.
std::vector<Request> requests_of(const std::vector<const Record*>& records);
// Anthropic's logs keep the first usage of the stream, 1 to 3 tokens (docs/design/trace-formats.md#trap-8);
// output is then estimated from the text.
bool output_recorded(const Request& request);
// Output tokens of such a request: from its text, but at most the growth of the next prompt.
uint64_t estimated_output(const Request& request, const Request* next);
// Whether later prompts of these requests lack the reasoning of earlier answers.
bool strips_reasoning(const std::vector<Request>& requests);

}  // namespace kvtwin::claude

#endif  // KVTWIN_TRACES_IMPORTERS_CLAUDE_REQUESTS_H_
