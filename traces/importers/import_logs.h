// Importers of request logs: benchmark results, observability exports, logs of proxies and servers.
//
// Each reads its tool's file into a RequestLog (traces/logs/request_log.h), which decides sessions, waits and
// prefixes.

#ifndef KVTWIN_TRACES_IMPORTERS_IMPORT_LOGS_H_
#define KVTWIN_TRACES_IMPORTERS_IMPORT_LOGS_H_

#include <string>
#include <string_view>

#include "traces/importers/formats.h"

namespace kvtwin {

// The format of a file that starts like this, or "".
std::string log_format_of(std::string_view start);

Result<void> import_bench(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_requests(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_aiperf(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_inference_perf(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_guidellm(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_otel(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_litellm(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_langfuse(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_openai(const std::string& path, const ImportOptions& options, TraceSink* sink);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_IMPORTERS_IMPORT_LOGS_H_
