// The foreign trace formats that kvtwin knows, in one table.
//
// A format has an importer, an exporter, or both. Importers never invent anything silently: what a
// source does not record is left out or marked ESTIMATED or SYNTHESISED in the trace
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

// Whether sessions share the prefix of tool definitions and system prompt. WEKA's ids say nothing
// about it (docs/design/trace-formats.md#trap-5), so it is a choice to sweep, and SYNTHESISED unless kNone.
enum class PrefixSharing : uint8_t {
  kNone,
  kEqualPrefix,  // sessions whose tool and system prompts have equal sizes
  kAll,          // all sessions, as far as the shorter prefix goes
};

struct ImportOptions {
  uint64_t seed = 1;                             // of everything drawn on import
  PrefixSharing sharing = PrefixSharing::kNone;  // weka
  bool all_files = false;                        // weka: take copies too, ignore unique_traces.json
  uint32_t block_tokens = 0;                     // mooncake family: tokens per hash id; 0: 512
  bool infer_sessions = false;                   // mooncake: chain requests whose ids continue another's
  int64_t jitter_ns = 0;                      // mooncake: spread equal stamps over so much (trap 10); 0: not
  std::vector<std::string>* notes = nullptr;  // what the user should know, one sentence each
};

struct TraceFormat {
  std::string name;
  std::string description;
  Result<void> (*import)(const std::string& path, const ImportOptions& options, TraceSink* sink) = nullptr;
  // Makes a sink that writes `path`; nullptr: this format cannot be written.
  std::unique_ptr<TraceSink> (*exporter)(const std::string& path) = nullptr;
};

// In the order in which help lists them; the first is "kvtwin", the canonical trace itself.
const std::vector<TraceFormat>& formats();

// `format` is a name of the table, or "auto": then the content of `path` decides. Ends with sink->done().
Result<void> import_trace(const std::string& format, const std::string& path, const ImportOptions& options,
                          TraceSink* sink);
// The name of the format that `path` holds, or an Error that says what was looked at.
Result<std::string> guess_format(const std::string& path);

Result<std::unique_ptr<TraceSink>> make_exporter(const std::string& format, const std::string& path);

Result<PrefixSharing> parse_sharing(const std::string& text);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_IMPORTERS_FORMATS_H_
