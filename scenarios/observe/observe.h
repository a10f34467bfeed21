// observe() drives a live OpenAI-compatible server with a trace and measures it.
//
// Closed loop, by the rules of traces/replay/replay.h: a session starts at its arrival; a request is sent
// when all that it waits for has ended, and its think time is over; tools take their recorded time. A
// dependency on an output token waits for the whole output. When a request fails, what waits for it is not
// sent.

#ifndef KVTWIN_SCENARIOS_OBSERVE_OBSERVE_H_
#define KVTWIN_SCENARIOS_OBSERVE_OBSERVE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "scenarios/observe/http_requests.h"
#include "scenarios/server_runs/measured.h"
#include "traces/format/sink.h"

namespace kvtwin {

struct ObserveOptions {
  std::string model;
  bool chat = false;          // /v1/chat/completions with words; else /v1/completions with token ids
  bool ignore_eos = true;     // vLLM and SGLang: outputs are as long as the trace says
  uint64_t seed = 1;          // of the prompts' contents
  uint64_t sessions_max = 0;  // 0: all
  double arrival_scale = 1;
  int64_t think_cap_ns = INT64_MAX;
};

// Collects a trace for observe().
class ObservedTrace final : public TraceSink {
 public:
  Result<void> header(const v1::TraceHeader& header) override;
  Result<void> shared_spans(const v1::SharedSpanTable& table) override;
  Result<void> session(const v1::Session& session) override;

  v1::TraceHeader head;
  std::vector<v1::SharedSpanTable> tables;
  std::vector<v1::Session> sessions;
};

struct Observation {
  MeasuredRun run;
  uint64_t sent = 0, failed = 0, not_sent = 0;
  uint64_t prompts_off = 0;  // the server counted other prompt tokens than the trace has
  std::map<std::string, uint64_t> errors;
};

using ObserveProgress = std::function<void(uint64_t ended, uint64_t in_flight)>;
Observation observe(const ObservedTrace& trace, const ObserveOptions& options, HttpRequests* http,
                    const ObserveProgress& progress);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OBSERVE_OBSERVE_H_
