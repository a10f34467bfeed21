// TraceReplies gives the answers of a trace's sessions: their lengths and the tools that they call. A client
// names the session; its n-th request then gets the answer of the session's n-th LLM request.

#ifndef KVTWIN_SCENARIOS_SERVE_TRACE_REPLIES_H_
#define KVTWIN_SCENARIOS_SERVE_TRACE_REPLIES_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "scenarios/serve/api_reply.h"
#include "traces/format/sink.h"

namespace kvtwin::serve {

struct TraceReply {
  uint32_t output_tokens = 0;
  std::vector<ToolCallReply> tools;
};

class TraceReplies final : public TraceSink {
 public:
  Result<void> header(const v1::TraceHeader& header) override;
  Result<void> shared_spans(const v1::SharedSpanTable&) override { return {}; }
  Result<void> session(const v1::Session& session) override;

  // The next answer of `session`; null: the trace has no such session, or no further request in it.
  const TraceReply* next(const std::string& session);

 private:
  struct Replies {
    std::vector<TraceReply> replies;
    size_t next = 0;
  };
  std::vector<std::string> tool_names_;
  std::unordered_map<std::string, Replies> sessions_;
};

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_TRACE_REPLIES_H_
