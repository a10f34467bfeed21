// Importers of chat logs: whole conversations, from which prompts must be reconstructed.
//
// All three stream into the sink and end with done(). What a source does not record is estimated and marked
// in the trace (docs/design/trace-formats.md#importers). Malformed bytes end in an Error.

#ifndef KVTWIN_TRACES_IMPORTERS_IMPORT_CHAT_LOGS_H_
#define KVTWIN_TRACES_IMPORTERS_IMPORT_CHAT_LOGS_H_

#include <string>

#include "traces/importers/formats.h"

namespace kvtwin {

// Claude Code's own logs (JSONL): a file, a directory (recursively) or an archive. One session per sessionId,
// wherever its records are; sub-agents become agents of the session.
Result<void> import_claude_code(const std::string& path, const ImportOptions& options, TraceSink* sink);

// Result files of tau-bench (a JSON list of trajectories): a file, a directory or an archive.
Result<void> import_tau_bench(const std::string& path, const ImportOptions& options, TraceSink* sink);

// Applied Compute's agentic workloads (JSONL, one session per row; docs/design/trace-formats.md#mooncake).
Result<void> import_applied_compute(const std::string& path, const ImportOptions& options, TraceSink* sink);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_IMPORTERS_IMPORT_CHAT_LOGS_H_
