// TraceCut passes on a part of a trace that is itself a good trace.
//
// A session keeps its head: the requests from its start until the first of the main agent that is beyond
// a limit (context window, time, number of requests). Whatever waits for a dropped request is dropped; a
// sub-agent that is cut short still holds its parent up as long as it did. Limits that are 0 are none.
// How long waits may be is no cut but a replay option (think_cap): it changes times, not work.

#ifndef KVTWIN_TRACES_INSPECT_CUT_H_
#define KVTWIN_TRACES_INSPECT_CUT_H_

#include <cstdint>
#include <vector>

#include "traces/format/sink.h"

namespace kvtwin {

struct CutOptions {
  uint64_t window_tokens = 0;      // prompt and output of a request together
  uint64_t head_requests_min = 1;  // sessions whose main agent keeps fewer are left out
  uint64_t sessions_max = 0;       // of those that stay
  uint64_t requests_max = 0;       // of all sessions together; the last session may be cut by it
  int64_t until_ns = 0;            // only what was recorded before; per session where arrivals are unknown
  bool opaque_sub_agents = false;  // sub-agents become one node that takes as long
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

// The session with only the chosen nodes, renumbered.
v1::Session keep_nodes(const v1::Session& session, const std::vector<bool>& keep);
// The session with each sub-agent as one opaque node.
v1::Session opaque_sub_agents(const v1::Session& session);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_INSPECT_CUT_H_
