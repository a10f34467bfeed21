#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "engine/base/units.h"
#include "traces/format/compact_json.h"
#include "traces/format/json_fields.h"
#include "traces/format/source_files.h"
#include "traces/importers/importers.h"
#include "traces/importers/mooncake.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr double kMs = 1e6;
constexpr uint64_t kRowBytesMax = uint64_t{256} << 20;

// The value under `name`, or else under `alias`.
template <typename Get>
auto either(JsonFields& fields, const char* name, const char* alias, Get get) {
  return fields.has(name) ? get(name) : get(alias);
}

std::string extras_of(const json& tree) {
  json extras = json::object();
  for (const char* const name : {"branches", "prefix_reset", "tool_events", "priority", "model", "type"}) {
    if (tree.contains(name)) extras[name] = tree[name];
  }
  return extras.empty() ? "" : extras.dump(-1, ' ', true, json::error_handler_t::replace);
}

Result<MooncakeRow> parse_row(std::string_view text, uint64_t line, const std::string& where,
                              uint32_t block) {
  auto document = parse_compact_json(text, {.run_key = "hash_ids", .number_suffix = {}});
  if (!document)
    return make_error(where, document.error().where + " " + document.error().what, "one JSON object a line");
  JsonFields fields(document->tree, where);
  MooncakeRow row;
  row.line = line;
  const auto time = [&](const char* name) { return fields.time_ns_if(name, kMs); };
  const auto count = [&](const char* name) { return fields.u32_if(name); };
  row.at_ns = either(fields, "timestamp", "created_time", time);
  row.delay_ns = either(fields, "delay", "delay_ms", time);
  row.tool_ns = time("tool_wait_ms");
  const auto prompt = either(fields, "input_length", "input_tokens", count);
  const auto output = either(fields, "output_length", "output_tokens", count);
  const auto runs = fields.u64_if("hash_ids");
  row.session = fields.text_if("session_id").value_or("");
  row.request = fields.text_if("request_id").value_or("");
  row.wait_for = fields.texts("wait_for");
  if (!fields.failed() && !output) fields.problem("has no \"output_length\"", "tokens of the output");
  if (!fields.failed() && !prompt && !runs) fields.problem("has neither \"input_length\" nor \"hash_ids\"");
  if (fields.failed()) return fields.error();
  if (runs) row.ids = std::move(document->runs[*runs]);
  for (IdRun& run : row.ids) run.scope = v1::SCOPE_DATASET;
  const uint64_t tokens = prompt ? *prompt : blocks_in(row.ids) * block;
  if (prompt && tokens == 0 && row.ids.empty())
    return make_error(where, "\"input_length\" is 0", "1 token at least");
  if (tokens > (1u << 30)) return make_error(where, fmt::format("{} prompt tokens", tokens), "at most 2^30");
  if (blocks_in(row.ids) > div_ceil<uint64_t>(tokens, block)) {
    return make_error(where, fmt::format("{} hash ids for {} tokens", blocks_in(row.ids), tokens),
                      fmt::format("ids of {} tokens; another size is given with --block-tokens", block));
  }
  row.prompt_tokens = static_cast<uint32_t>(tokens);
  row.output_tokens = *output;
  row.extras_json = extras_of(document->tree);
  return row;
}

uint64_t memory_of(const MooncakeRow& row) {
  uint64_t bytes = sizeof row + row.ids.capacity() * sizeof(IdRun) + row.session.capacity() +
                   row.request.capacity() + row.extras_json.capacity();
  for (const std::string& name : row.wait_for) bytes += sizeof name + name.capacity();
  return bytes;
}

// If stamps are shared by several rows on average, they are batches, and their usual distance is the
// resolution of the times (3 s in the Mooncake traces, trap 10). Else milliseconds.
double resolution_ns(const std::vector<MooncakeRow>& rows) {
  std::vector<int64_t> stamps;
  for (const MooncakeRow& row : rows) {
    if (row.at_ns) stamps.push_back(*row.at_ns);
  }
  const size_t all = stamps.size();
  std::sort(stamps.begin(), stamps.end());
  stamps.erase(std::unique(stamps.begin(), stamps.end()), stamps.end());
  if (stamps.size() < 3 || all < 2 * stamps.size()) return kMs;
  for (size_t i = 0; i + 1 < stamps.size(); ++i) stamps[i] = stamps[i + 1] - stamps[i];
  stamps.pop_back();
  std::nth_element(stamps.begin(), stamps.begin() + static_cast<std::ptrdiff_t>(stamps.size() / 2),
                   stamps.end());
  return static_cast<double>(stamps[stamps.size() / 2]);
}

}  // namespace

Result<std::vector<MooncakeRow>> read_mooncake_rows(const std::string& path, uint32_t block_tokens) {
  std::vector<MooncakeRow> rows;
  uint64_t bytes = 0;
  const auto take = [&](uint64_t line, std::string_view text) -> Result<void> {
    auto row = parse_row(text, line, fmt::format("{}:{}", path, line), block_tokens);
    if (!row) return tl::unexpected(row.error());
    row->ids.shrink_to_fit();
    bytes += memory_of(*row);
    if (bytes > kRowBytesMax) {
      return make_error(fmt::format("{}:{}", path, line),
                        fmt::format("more than {} MiB of rows", kRowBytesMax >> 20), "import it in parts");
    }
    rows.push_back(std::move(*row));
    return {};
  };
  if (auto good = for_each_line(path, take); !good) return tl::unexpected(good.error());
  if (rows.empty()) return make_error(path, "holds no rows", "one JSON object a line");
  return rows;
}

void note_missing_ids(const ImportOptions& options, const std::vector<MooncakeRow>& rows, uint32_t block) {
  size_t rows_short = 0;
  for (const MooncakeRow& row : rows)
    rows_short += !row.ids.empty() && blocks_in(row.ids) < div_ceil<uint64_t>(row.prompt_tokens, block);
  if (rows_short == 0) return;
  note(options,
       fmt::format("{} of {} rows have hash ids for fewer tokens than their prompt ({} tokens an id): "
                   "the other tokens are shared with no other request",
                   rows_short, rows.size(), block));
}

v1::TraceHeader mooncake_header(const std::string& format, const std::string& path,
                                const ImportOptions& options, const std::vector<MooncakeRow>& rows) {
  v1::TraceHeader header = imported_header(format, path);
  header.mutable_source()->set_url("https://github.com/kvcache-ai/Mooncake");
  header.set_session_arrivals(v1::ARR_OPEN_LOOP);
  header.set_block_tokens(options.block_tokens != 0 ? options.block_tokens : kMooncakeBlockTokens);
  header.set_block_ids_chained(true);
  header.set_tail_block_hashed(true);
  header.set_time_resolution_ns(resolution_ns(rows));
  add_recipe(&header, "weka-service-fit", R"({"base_s":1.26,"output_per_s":67.4,"s_per_100k_prompt":1.56})",
             0, "weka-claude-code");
  add_recipe(&header, "infer-sessions", R"({"parent":"latest whose last full block is on the chain"})", 0,
             "");
  add_recipe(&header, "jitter", fmt::format(R"({{"uniform_ns":{}}})", options.jitter_ns), options.seed, "");
  for (const char* const field : {"LlmRequest.prompt_tokens", "LlmRequest.output_tokens",
                                  "LlmRequest.prompt_key", "LlmRequest.think_ns"}) {
    add_policy(&header, field, v1::RECORDED);
  }
  const bool jitter = options.jitter_ns > 0;
  for (const char* const field : {"LlmRequest.recorded_at_ns", "Session.arrival_at_ns"}) {
    add_policy(&header, field, jitter ? v1::SYNTHESISED : v1::RECORDED, jitter ? kMooncakeJitterRecipe : 0);
  }
  add_policy(&header, "LlmRequest.recorded_service_ns", v1::UNKNOWN);
  add_policy(&header, "Span.role", v1::UNKNOWN);
  return header;
}

std::vector<int64_t> infer_mooncake_parents(const std::vector<MooncakeRow>& rows, uint32_t block_tokens) {
  std::vector<int64_t> parents(rows.size(), -1);
  std::unordered_map<int64_t, int64_t> ends_at;  // last full block -> latest row that ends with it
  for (size_t i = 0; i < rows.size(); ++i) {
    const MooncakeRow& row = rows[i];
    int64_t& parent = parents[i];
    uint64_t looked = 0;
    for (const IdRun& run : row.ids) {
      for (uint32_t k = 0; k < run.count && looked < (1u << 16); ++k, ++looked) {
        const auto it = ends_at.find(run.first + k);
        if (it == ends_at.end() || it->second <= parent) continue;
        const MooncakeRow& earlier = rows[static_cast<size_t>(it->second)];
        const uint64_t ends = uint64_t{earlier.prompt_tokens} + earlier.output_tokens;
        if (ends <= uint64_t{row.prompt_tokens} + block_tokens) parent = it->second;
      }
    }
    // A prompt of a single full block ends with the system prompt, which does not identify a session.
    const uint64_t full = row.prompt_tokens / block_tokens;
    if (full < 2 || full > blocks_in(row.ids)) continue;
    uint64_t left = full - 1;
    for (const IdRun& run : row.ids) {
      if (left < run.count) {
        ends_at[run.first + static_cast<int64_t>(left)] = static_cast<int64_t>(i);
        break;
      }
      left -= run.count;
    }
  }
  return parents;
}

void start_mooncake_session(const std::string& id, int64_t arrival_ns, v1::Session* session) {
  session->Clear();
  session->set_id(id);
  session->set_arrival_at_ns(arrival_ns);
  session->add_agents()->set_name("main");
}

v1::Node* add_mooncake_request(const MooncakeRow& row, bool with_key, v1::Session* session) {
  v1::Node* const node = session->add_nodes();
  v1::LlmRequest& llm_request = *node->mutable_llm();
  llm_request.set_prompt_tokens(row.prompt_tokens);
  llm_request.set_output_tokens(row.output_tokens);
  if (with_key && !row.ids.empty()) encode_key(row.ids, v1::SCOPE_DATASET, llm_request.mutable_prompt_key());
  if (!row.extras_json.empty()) add_extra(node->mutable_extras(), "mooncake", row.extras_json);
  if (!row.request.empty()) {
    add_extra(node->mutable_extras(), "request_id",
              nlohmann::json(row.request).dump(-1, ' ', true, json::error_handler_t::replace));
  }
  return node;
}

}  // namespace kvtwin
