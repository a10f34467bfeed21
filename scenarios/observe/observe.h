// observe() drives a live OpenAI-compatible server with a trace and measures it.
//
// Closed loop, by the rules of traces/replay/replay.h: a session starts at its arrival; a request is sent
// when all that it waits for has ended, and its think time is over; tools take their recorded time. A
// dependency on an output token waits for the whole output. When a request fails, what waits for it is not
// sent. Requests carry their session's name, so that a router can keep a session on one engine.
//
// With a speed, all of the trace's times pass that much faster and measured times count that much longer:
// both are then times of a server whose clock runs that fast (kvtwin serve --speed).

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
  double speed = 1;
  int64_t think_cap_ns = INT64_MAX;
};

// What a trace asks for, if each request took no time.
struct RecordedLoad {
  uint64_t requests = 0;
  int64_t span_ns = 0;  // from the start to the last request or tool
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
  // Requests: not_sent because one that they wait for failed, left_out and dropped because of a stop: not
  // sent yet, and sent without a complete answer.
  uint64_t sent = 0, failed = 0, not_sent = 0, left_out = 0, dropped = 0;
  bool stopped = false;
  uint64_t prompts_off = 0;  // the server counted other prompt tokens than the trace has
  std::map<std::string, uint64_t> errors;
};

RecordedLoad recorded_load(const ObservedTrace& trace, const ObserveOptions& options);

// Called several times a second. Returns false to stop: requests without a complete answer are then dropped.
using ObserveProgress = std::function<bool(uint64_t ended, uint64_t in_flight)>;
Observation observe(const ObservedTrace& trace, const ObserveOptions& options, HttpRequests* http,
                    const ObserveProgress& progress);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OBSERVE_OBSERVE_H_
