// Streams a canonical trace file into a sink, with one record in memory at a time.
//
// Any bytes give either a trace or an Error that names the file and the byte. A record may be at most
// kRecordBytesMax long and take kDecodedBytesMax decoded (record.h). It is read in parts, so that a false
// length costs nothing. Every session passes check.h before the sink gets it.

#ifndef KVTWIN_TRACES_FORMAT_READER_H_
#define KVTWIN_TRACES_FORMAT_READER_H_

#include <istream>
#include <string>

#include "traces/format/sink.h"

namespace kvtwin {

// Calls sink->done() last. `name` is the name of the stream in messages.
Result<v1::TraceFooter> read_trace(std::istream& in, const std::string& name, TraceSink* sink);
Result<v1::TraceFooter> read_trace(const std::string& path, TraceSink* sink);

// True if the bytes start like a canonical trace.
bool looks_like_trace(std::string_view start);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_READER_H_
