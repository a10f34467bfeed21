// WEKA's Claude Code traces (github.com/callanjfox/kv-cache-tester): one JSON file per session.
//
// A file lists requests and sub-agents in order of time. Easily misread (docs/design/trace-formats.md#traps,
// 1 to 6): a sub-agent's `t` is its END, and its requests count from its start; the parent's next
// `think_time` contains the sub-agent's wall time; ids cover floor(in/64) blocks; requests without `api_time`
// are followed by a `think_time` longer than the whole gap.

#ifndef KVTWIN_TRACES_IMPORTERS_WEKA_H_
#define KVTWIN_TRACES_IMPORTERS_WEKA_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "traces/format/compact_json.h"
#include "traces/importers/formats.h"

namespace kvtwin {

struct WekaPrefix {  // the start of a prompt
  uint32_t tool_tokens = 0;
  uint32_t system_tokens = 0;
  uint64_t tokens() const { return uint64_t{tool_tokens} + system_tokens; }
};

struct WekaRequest {
  int64_t at_ns = 0;  // since the session's start, also for sub-agents
  std::optional<int64_t> service_ns, think_ns, ttft_ns;
  uint32_t prompt_tokens = 0, output_tokens = 0;
  std::string type, model, stop;
  std::vector<std::string> input_types, output_types;
  IdRuns ids;
  bool has_input(std::string_view type_name) const;
};

struct WekaAgent {  // a sub-agent
  std::string name, kind, status;
  int64_t start_ns = 0;
  int64_t end_ns = 0;   // of an async one: its start, when the parent continued
  bool joined = false;  // the parent waited for it
  WekaPrefix prefix;
  std::string fields_json;  // all its fields except requests, for re-export
  std::vector<WekaRequest> requests;
};

struct WekaItem {
  std::optional<WekaRequest> request;  // of the main agent
  std::optional<WekaAgent> agent;
};

struct WekaTrace {
  std::string id;
  uint32_t block_tokens = 0;
  v1::Scope scope = v1::SCOPE_SESSION;
  WekaPrefix prefix;
  std::string fields_json;  // all fields except id and requests
  std::vector<WekaItem> items;
};

// Interns model names in order of first use. Archives come in any order, so the trace uses ranks.
class NameTable {
 public:
  uint32_t index(const std::string& name);
  std::vector<std::string> sorted() const;  // all names, sorted
  std::vector<uint32_t> ranks() const;      // index -> rank in sorted()

 private:
  std::map<std::string, uint32_t> index_;
};

Result<WekaTrace> parse_weka(std::string_view text, const std::string& where);
// Indices of the recipes in weka_header().
constexpr uint32_t kWekaServiceRecipe = 1, kWekaSplitRecipe = 2, kWekaSharingRecipe = 3;
v1::TraceHeader weka_header(const std::string& path, const ImportOptions& options, uint32_t block_tokens,
                            const std::vector<std::string>& models);
Result<v1::Session> weka_session(const WekaTrace& trace, PrefixSharing sharing, NameTable* models);

// Writes the session as a WEKA file.
Result<std::string> weka_text(const v1::TraceHeader& header, const v1::Session& session);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_IMPORTERS_WEKA_H_
