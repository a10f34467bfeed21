// Streams a canonical trace file into a sink, one record in memory at a time.
//
// Whatever the bytes, the answer is a trace or an Error that names the file and the byte: a record
// may be at most kRecordBytesMax long and take kDecodedBytesMax decoded (record.h), is read in pieces
// so that a length that lies costs nothing, and every session passes check.h before the sink sees it.

#ifndef KVTWIN_TRACES_FORMAT_READER_H_
#define KVTWIN_TRACES_FORMAT_READER_H_

#include <istream>
#include <string>

#include "traces/format/sink.h"

namespace kvtwin {

// Calls sink->done() last. `name` stands for the stream in messages.
Result<v1::TraceFooter> read_trace(std::istream& in, const std::string& name, TraceSink* sink);
Result<v1::TraceFooter> read_trace(const std::string& path, TraceSink* sink);

// True when the bytes start like a canonical trace.
bool looks_like_trace(std::string_view start);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_READER_H_
