// TraceCut passes on a part of a trace that is itself a valid trace.
//
// Of a session it retains the head: the requests from its start until the first request of the main agent
// beyond a limit (context window, time, number of requests). What waits for a dropped request is dropped. A
// sub-agent that is cut short still delays its parent by the same time. Limits of 0 are none. Limits on waits
// are a replay option (think_cap), because they change times and not work.

#ifndef KVTWIN_TRACES_INSPECT_CUT_H_
#define KVTWIN_TRACES_INSPECT_CUT_H_

#include <cstdint>
#include <vector>

#include "traces/format/sink.h"

namespace kvtwin {

struct CutOptions {
  uint64_t window_tokens = 0;      // prompt and output of a request together
  uint64_t head_requests_min = 1;  // sessions whose main agent retains fewer are dropped
  uint64_t sessions_max = 0;       // of the retained sessions
  uint64_t requests_max = 0;       // of all sessions together; the last session may be cut by it
  int64_t until_ns = 0;            // only what was recorded before; per session where arrivals are unknown
  bool opaque_sub_agents = false;  // sub-agents become one node of the same duration
};

class TraceCut : public TraceSink {
 public:
  TraceCut(const CutOptions& options, TraceSink* next) : options_(options), next_(*next) {}

  Result<void> header(const v1::TraceHeader& header) override;
  Result<void> shared_spans(const v1::SharedSpanTable& table) override { return next_.shared_spans(table); }
  Result<void> session(const v1::Session& session) override;
  Result<void> done() override { return next_.done(); }

 private:
  bool within(const v1::Node& node, uint64_t requests_before) const;
  std::vector<bool> choose(const v1::Session& session) const;

  const CutOptions options_;
  TraceSink& next_;
  v1::TraceHeader header_;
  uint64_t sessions_ = 0;
  uint64_t requests_ = 0;
};

// The session with the chosen nodes only, renumbered.
v1::Session keep_nodes(const v1::Session& session, const std::vector<bool>& keep);
// The session with one opaque node per sub-agent.
v1::Session opaque_sub_agents(const v1::Session& session);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_INSPECT_CUT_H_
