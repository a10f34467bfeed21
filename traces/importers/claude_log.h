// Records of Claude Code's logs, reduced to what a trace needs: agents, times, durations and token counts.
// Text is measured and discarded, so that a year of logs fits into memory.

#ifndef KVTWIN_TRACES_IMPORTERS_CLAUDE_LOG_H_
#define KVTWIN_TRACES_IMPORTERS_CLAUDE_LOG_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "traces/format/sink.h"
#include "traces/proto/agent_trace.pb.h"

namespace kvtwin::claude {

// Claude's text has 3.9 characters per token (docs/design/trace-formats.md#trap-8). Never 0.
uint32_t tokens_of(uint64_t chars);

struct Block {
  enum class Kind : uint8_t { kText, kThinking, kToolUse, kToolResult, kImage };
  Kind kind = Kind::kText;
  bool failed = false;  // a tool result that reports an error
  uint64_t chars = 0;
  std::string tool_id{};  // tool_use and tool_result
  std::string tool{};     // tool_use: its name
  // tool_use of a sub-agent: its kind, and the hash of the prompt that opens its conversation.
  std::string agent_kind{};
  uint64_t prompt_hash = 0;
};

struct Record {
  bool assistant = false;
  bool sidechain = false;  // belongs to a sub-agent
  bool compacted = false;  // the next record starts a new prompt
  bool api_error = false;  // an answer that the client invented
  int64_t at_ns = 0;       // Unix time
  std::string uuid, parent, agent;
  uint64_t text_hash = 0;  // user: of its text
  std::vector<Block> blocks;
  // user: what a tool_result reports about a sub-agent that it ends
  uint64_t agent_tokens = 0;
  uint32_t agent_tool_uses = 0;
  // assistant
  std::string message, model, stop_reason;
  uint64_t prompt_tokens = 0, cache_read = 0, cache_write = 0, output_tokens = 0;
};

struct Log {
  std::string id;  // sessionId
  std::vector<Record> records;
};

// All logs by session, in order of appearance.
class Logs {
 public:
  // Adds one document of JSON lines; `name` is for errors and for records without a sessionId.
  Result<void> add(const std::string& name, std::string_view bytes);

  std::vector<Log>& logs() { return logs_; }
  uint64_t titles() const {
    return titles_;
  }  // "summary" records: titles of other conversations, not compactions

 private:
  Result<void> line(const std::string& name, uint64_t number, std::string_view text);
  Log& log(const std::string& id);

  std::vector<Log> logs_;
  std::map<std::string, size_t> index_;
  uint64_t titles_ = 0;
  uint64_t bytes_ = 0;  // of all records
};

// Names that the header lists; the index of a name.
class Names {
 public:
  uint32_t operator()(const std::string& name);
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::map<std::string, uint32_t> index_;
  std::vector<std::string> list_;
};

struct Counts {
  uint64_t unattached = 0;  // sub-agent logs that no request started and no request precedes
  uint64_t estimated = 0;   // requests whose output tokens were estimated
  uint64_t failed = 0;      // requests that ended in an API error
  uint64_t rewrites = 0;    // prompts smaller than what went before
};

// The session of a log; one without nodes if the log has no requests. Times are relative to origin_ns.
Result<v1::Session> build_session(const Log& log, int64_t origin_ns, Names* models, Names* tools,
                                  Counts* counts);

}  // namespace kvtwin::claude

#endif  // KVTWIN_TRACES_IMPORTERS_CLAUDE_LOG_H_
