// The table of foreign trace formats that kvtwin supports.
//
// A format has an importer, an exporter, or both. Importers never invent anything silently: what a source
// does not record is left out, or marked ESTIMATED or SYNTHESISED in the trace
// (docs/design/trace-formats.md#schema, #importers).

#ifndef KVTWIN_TRACES_IMPORTERS_FORMATS_H_
#define KVTWIN_TRACES_IMPORTERS_FORMATS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "traces/format/sink.h"

namespace kvtwin {

// Which sessions share the prefix of tool definitions and system prompt. WEKA's ids do not tell
// (docs/design/trace-formats.md#trap-5), so this is a parameter to sweep, and SYNTHESISED unless kNone.
enum class PrefixSharing : uint8_t {
  kNone,
  kEqualPrefix,  // sessions whose tool and system prompts have equal sizes
  kAll,          // all sessions, up to the length of the shorter prefix
};

struct ImportOptions {
  uint64_t seed = 1;                             // seed of everything that is drawn on import
  PrefixSharing sharing = PrefixSharing::kNone;  // weka
  bool all_files = false;                        // weka: imports copies too, ignores unique_traces.json
  uint32_t block_tokens = 0;                     // mooncake family: tokens per hash id; 0: 512
  bool infer_sessions = false;  // mooncake: requests whose ids continue another's form a session with it
  int64_t jitter_ns = 0;        // mooncake: spreads equal stamps over this time (trap 10); 0: not
  std::vector<std::string>* notes = nullptr;  // receives sentences for the user
};

struct TraceFormat {
  std::string name;
  std::string description;
  Result<void> (*import)(const std::string& path, const ImportOptions& options, TraceSink* sink) = nullptr;
  // Makes a sink that writes `path`; null: the format cannot be written.
  std::unique_ptr<TraceSink> (*exporter)(const std::string& path) = nullptr;
};

// In the order of the help text; the first is "kvtwin", the canonical trace.
const std::vector<TraceFormat>& formats();

// `format` is a name of the table, or "auto", which decides by the content of `path`. Ends with sink->done().
Result<void> import_trace(const std::string& format, const std::string& path, const ImportOptions& options,
                          TraceSink* sink);
// The name of the format of `path`, or an Error that lists what was tried.
Result<std::string> guess_format(const std::string& path);

Result<std::unique_ptr<TraceSink>> make_exporter(const std::string& format, const std::string& path);

Result<PrefixSharing> parse_sharing(const std::string& text);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_IMPORTERS_FORMATS_H_
