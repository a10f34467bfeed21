// The validity rules of a trace, on which replay, exporters and cuts rely:
//
//   (1) dependencies point backwards, to existing nodes; at_output_token names an existing token;
//   (2) the nodes of a session are one weakly connected graph (hence one DAG, by (1));
//   (3) runs, agents, models, tools, spans and tables are in range;
//   (4) where a prompt or output has spans, they sum to prompt_tokens or output_tokens;
//   (5) block keys decode and cover no more than the prompt;
//   (6) times are not negative, and all waits of a session sum to less than 2^61 ns.

#ifndef KVTWIN_TRACES_FORMAT_CHECK_H_
#define KVTWIN_TRACES_FORMAT_CHECK_H_

#include <map>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "traces/proto/agent_trace.pb.h"

namespace kvtwin {

constexpr uint32_t kTraceSchemaVersion = 1;

// Checks records in file order. Errors name the session and the node; the caller adds the file.
class SessionChecker {
 public:
  Result<void> header(const v1::TraceHeader& header);
  Result<void> shared_spans(const v1::SharedSpanTable& table);
  Result<void> session(const v1::Session& session) const;

  // Adds the counts of a session to a footer (all but the offsets).
  void count(const v1::Session& session, v1::TraceFooter* footer) const;

 private:
  v1::TraceHeader header_;
  std::map<uint32_t, std::vector<uint64_t>> tables_;  // by table: tokens before each of its spans
  uint64_t shared_spans_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_CHECK_H_
