// LogSession makes the sessions of a trace from the requests that a log has of one session.

#ifndef KVTWIN_TRACES_LOGS_LOG_SESSION_H_
#define KVTWIN_TRACES_LOGS_LOG_SESSION_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "traces/format/session_builder.h"
#include "traces/logs/request_log.h"

namespace kvtwin {

// A request with its gaps filled: every time and length is known, and marked if estimated.
struct TimedRequest {
  const LoggedRequest* source = nullptr;
  int64_t start_ns = 0, end_ns = 0;  // since the origin of the trace
  uint32_t prompt_tokens = 0, output_tokens = 0;
  uint32_t model = 0;
  bool prompt_estimated = false, output_estimated = false, end_estimated = false;
};

// Tokens of each message by the hash of everything up to it. A message that several sessions send in the same
// place is a span of the same length in all of them.
using PrefixTokens = std::map<TextHash, uint32_t>;

// Requests are in order of their starts. A session whose requests overlap without a common predecessor falls
// into several sessions: the first has the name `id`, others "id/2", "id/3".
std::vector<v1::Session> log_sessions(const std::string& id, const std::vector<TimedRequest>& requests,
                                      bool times_known, PrefixTokens* prefixes);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_LOGS_LOG_SESSION_H_
