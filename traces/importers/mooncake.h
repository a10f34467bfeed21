// Rows of the Mooncake family (docs/design/trace-formats.md#mooncake), one JSON object per line.
//
// * mooncake: a full prompt: hash ids (chained, ceil(input/block)), lengths, a timestamp in ms.
// * mooncake-delta: the same shape, but only the new part since the session's previous row.
// * agentic_mooncake: adds request_id, wait_for, delay and tool_wait_ms.
//
// Accepted aliases: input_tokens, output_tokens, created_time, delay_ms.

#ifndef KVTWIN_TRACES_IMPORTERS_MOONCAKE_H_
#define KVTWIN_TRACES_IMPORTERS_MOONCAKE_H_

#include <optional>
#include <string>
#include <vector>

#include "traces/format/block_key.h"
#include "traces/importers/formats.h"

namespace kvtwin {

constexpr uint32_t kMooncakeBlockTokens = 512;
constexpr uint32_t kMooncakeServiceRecipe = 1;  // index of the recipe in mooncake_header()
constexpr uint32_t kMooncakeSessionRecipe = 2;
constexpr uint32_t kMooncakeJitterRecipe = 3;

struct MooncakeRow {
  uint64_t line = 0;
  std::optional<int64_t> at_ns;     // arrival, as in the source
  std::optional<int64_t> delay_ns;  // after its dependencies; excludes tools
  std::optional<int64_t> tool_ns;   // tool time after its dependencies
  uint32_t prompt_tokens = 0;       // of the row; mooncake-delta: of the new part
  uint32_t output_tokens = 0;
  IdRuns ids;
  std::string session;
  std::string request;
  std::vector<std::string> wait_for;
  std::string extras_json;  // metadata without effect on replay; "": none
};

// All rows of a file; at most 256 MiB.
Result<std::vector<MooncakeRow>> read_mooncake_rows(const std::string& path, uint32_t block_tokens);

// Notes how many rows have hash ids for a part of their prompt only.
void note_missing_ids(const ImportOptions& options, const std::vector<MooncakeRow>& rows, uint32_t block);

// `rows` determine the resolution of the times: that of stamps that come in batches.
v1::TraceHeader mooncake_header(const std::string& format, const std::string& path,
                                const ImportOptions& options, const std::vector<MooncakeRow>& rows);

// The parent of each row, or -1: see --infer-sessions in import_mooncake.cc.
std::vector<int64_t> infer_mooncake_parents(const std::vector<MooncakeRow>& rows, uint32_t block_tokens);

// Adds the row's request to the session, without dependencies, waits and recorded times.
v1::Node* add_mooncake_request(const MooncakeRow& row, bool with_key, v1::Session* session);
void start_mooncake_session(const std::string& id, int64_t arrival_ns, v1::Session* session);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_IMPORTERS_MOONCAKE_H_
