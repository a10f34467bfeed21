// TraceSink receives a canonical trace record by record, so that no code has to hold a whole trace.
//
// Everything that produces sessions (reader, importers, synthesisers) pushes into a sink; everything that
// uses them (writer, replay, inspect, exporters, cut) is a sink. Order: header once, then shared tables and
// sessions in any order, then done() once. A sink returns its errors; the producer stops and returns them.

#ifndef KVTWIN_TRACES_FORMAT_SINK_H_
#define KVTWIN_TRACES_FORMAT_SINK_H_

#include "engine/base/result.h"
#include "traces/proto/agent_trace.pb.h"

namespace kvtwin {

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual Result<void> header(const v1::TraceHeader& header) = 0;
  virtual Result<void> shared_spans(const v1::SharedSpanTable& table) = 0;
  virtual Result<void> session(const v1::Session& session) = 0;
  virtual Result<void> done() { return {}; }
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_SINK_H_
