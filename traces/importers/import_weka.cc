#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/prng.h"
#include "traces/format/json_fields.h"
#include "traces/format/source_files.h"
#include "traces/importers/importers.h"
#include "traces/importers/weka.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr double kSecond = 1e9;

Result<WekaRequest> parse_request(const json& object, const CompactJson& document, int64_t origin_ns,
                                  v1::Scope scope, const std::string& where) {
  JsonFields fields(object, where);
  WekaRequest request;
  request.at_ns = origin_ns + fields.time_ns("t", kSecond);
  request.service_ns = fields.time_ns_if("api_time", kSecond);
  request.think_ns = fields.time_ns_if("think_time", kSecond);
  request.ttft_ns = fields.time_ns_if("ttft", kSecond);
  request.prompt_tokens = fields.u32("in");
  request.output_tokens = fields.u32("out");
  request.type = fields.text("type");
  request.model = fields.text("model");
  request.stop = fields.text_if("stop").value_or("");
  request.input_types = fields.texts("input_types");
  request.output_types = fields.texts("output_types");
  if (request.type != "n" && request.type != "s") {
    fields.problem(fmt::format("type is '{}'", request.type), "n, s or subagent");
  }
  const std::optional<uint64_t> runs = fields.u64_if("hash_ids");
  if (!runs) fields.problem("has no \"hash_ids\"", "a list of block ids");
  if (fields.failed()) return fields.error();
  // The parser has replaced the list by its index.
  request.ids = document.runs[*runs];
  for (IdRun& run : request.ids) run.scope = scope;
  return request;
}

Result<WekaAgent> parse_agent(const json& object, const CompactJson& document, v1::Scope scope,
                              const std::string& where) {
  JsonFields fields(object, where);
  WekaAgent agent;
  const int64_t t = fields.time_ns("t", kSecond);
  const int64_t duration = fields.time_ns_if("duration_ms", 1e6).value_or(0);
  agent.name = fields.text("agent_id");
  agent.kind = fields.text_if("subagent_type").value_or("subagent");
  agent.status = fields.text_if("status").value_or("completed");
  agent.joined = agent.status != "async_launched";
  agent.prefix = {fields.u32_if("tool_tokens").value_or(0), fields.u32_if("system_tokens").value_or(0)};
  agent.end_ns = t;  // `t` is its end: trap 1. An async one has no duration, and `t` is its launch.
  agent.start_ns = t - std::min(duration, t);
  const json& requests = fields.list("requests");
  if (fields.failed()) return fields.error();
  json rest = object;
  rest.erase("requests");
  agent.fields_json = rest.dump(-1, ' ', true, json::error_handler_t::replace);
  for (size_t i = 0; i < requests.size(); ++i) {
    auto request =
        parse_request(requests[i], document, agent.start_ns, scope, fmt::format("{}.requests[{}]", where, i));
    if (!request) return tl::unexpected(request.error());
    agent.requests.push_back(std::move(*request));
  }
  return agent;
}

// The list of distinct files next to the traces, if there is one.
Result<std::set<std::string>> unique_files(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path concurrent(path);
  if (!concurrent.has_filename()) concurrent = concurrent.parent_path();
  std::vector<fs::path> places{concurrent.parent_path() / "unique_traces.json"};
  if (fs::is_directory(path, error)) places.insert(places.begin(), concurrent / "unique_traces.json");
  for (const fs::path& place : places) {
    if (!fs::is_regular_file(place, error)) continue;
    const auto text = read_document(place.string());
    if (!text) return tl::unexpected(text.error());
    const auto document = parse_compact_json(*text, {});
    if (!document) return make_error(place.string() + ": " + document.error().where, document.error().what);
    std::set<std::string> names;
    for (const json& name : document->tree) {
      if (!name.is_string())
        return make_error(place.string(), fmt::format("holds {}", shown(name)), "file names");
      names.insert(name.get<std::string>());
    }
    return names;
  }
  return std::set<std::string>{};
}

}  // namespace

bool WekaRequest::has_input(std::string_view type_name) const {
  return std::find(input_types.begin(), input_types.end(), type_name) != input_types.end();
}

uint32_t NameTable::index(const std::string& name) {
  return index_.emplace(name, static_cast<uint32_t>(index_.size())).first->second;
}

std::vector<std::string> NameTable::sorted() const {
  std::vector<std::string> names;
  for (const auto& [name, index] : index_) names.push_back(name);
  return names;
}

std::vector<uint32_t> NameTable::ranks() const {
  std::vector<uint32_t> ranks(std::max<size_t>(1, index_.size()));  // an agent without requests has model 0
  uint32_t rank = 0;
  for (const auto& [name, index] : index_) ranks[index] = rank++;
  return ranks;
}

Result<WekaTrace> parse_weka(std::string_view text, const std::string& where) {
  auto document = parse_compact_json(text, {.run_key = "hash_ids", .number_suffix = {}});
  if (!document)
    return make_error(where + ": " + document.error().where, document.error().what, "a WEKA trace");
  JsonFields fields(document->tree, where);
  WekaTrace trace;
  trace.id = fields.text("id");
  trace.block_tokens = fields.u32("block_size");
  const std::string scope = fields.text_if("hash_id_scope").value_or("local");
  if (scope != "local" && scope != "global")
    fields.problem("hash_id_scope is '" + scope + "'", "local or global");
  trace.scope = scope == "local" ? v1::SCOPE_SESSION : v1::SCOPE_DATASET;
  trace.prefix = {fields.u32_if("tool_tokens").value_or(0), fields.u32_if("system_tokens").value_or(0)};
  if (!fields.failed() && trace.block_tokens == 0) fields.problem("block_size is 0", "tokens per block id");
  const json& requests = fields.list("requests");
  if (!fields.failed() && requests.empty()) fields.problem("has no requests");
  if (fields.failed()) return fields.error();
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string place = fmt::format("{}: requests[{}]", where, i);
    WekaItem& item = trace.items.emplace_back();
    if (requests[i].is_object() && requests[i].value("type", json()) == "subagent") {
      auto agent = parse_agent(requests[i], *document, trace.scope, place);
      if (!agent) return tl::unexpected(agent.error());
      item.agent = std::move(*agent);
    } else {
      auto request = parse_request(requests[i], *document, 0, trace.scope, place);
      if (!request) return tl::unexpected(request.error());
      item.request = std::move(*request);
    }
  }
  document->tree.erase("requests");
  document->tree.erase("id");
  trace.fields_json = document->tree.dump(-1, ' ', true, json::error_handler_t::replace);
  return trace;
}

v1::TraceHeader weka_header(const std::string& path, const ImportOptions& options, uint32_t block_tokens,
                            const std::vector<std::string>& models) {
  v1::TraceHeader header = imported_header("weka", path);
  header.mutable_source()->set_url("https://github.com/callanjfox/kv-cache-tester");
  header.mutable_source()->set_licence("Apache-2.0");
  for (const std::string& model : models) header.add_models(model);
  header.set_session_arrivals(v1::ARR_NONE);
  header.set_request_arrivals(v1::ARR_CLOSED_LOOP);  // since the session's start
  header.set_block_tokens(block_tokens);
  header.set_block_ids_chained(true);
  header.set_tail_block_hashed(false);
  header.set_time_resolution_ns(1e9);
  add_recipe(&header, "weka-service-fit", R"({"base_s":1.26,"output_per_s":67.4,"s_per_100k_prompt":1.56})",
             0, "recorded requests below 120 s");
  add_recipe(&header, "even-split", R"({"of":"output tokens over output types"})", 0, "");
  if (options.sharing != PrefixSharing::kNone) {
    const bool equal = options.sharing == PrefixSharing::kEqualPrefix;
    add_recipe(&header, "prefix-sharing", equal ? R"({"mode":"equal-prefix"})" : R"({"mode":"all"})", 0, "");
  }
  for (const char* const field :
       {"LlmRequest.prompt_tokens", "LlmRequest.output_tokens", "LlmRequest.think_ns",
        "LlmRequest.recorded_at_ns", "LlmRequest.recorded_service_ns", "LlmRequest.prompt_key"}) {
    add_policy(&header, field, v1::RECORDED);
  }
  if (options.sharing != PrefixSharing::kNone) {
    add_policy(&header, "BlockKey.scope", v1::SYNTHESISED, kWekaSharingRecipe);
  }
  add_policy(&header, "LlmRequest.recorded_ttft_ns", v1::UNKNOWN);
  add_policy(&header, "Dep.delay_ns", v1::DERIVED);
  add_policy(&header, "Span.tokens", v1::DERIVED);
  add_policy(&header, "Span.role", v1::DERIVED);
  add_policy(&header, "Session.arrival_at_ns", v1::UNKNOWN);
  return header;
}

Result<void> import_weka(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  std::set<std::string> unique;
  if (!options.all_files) {
    auto found = unique_files(path);
    if (!found) return tl::unexpected(found.error());
    unique = std::move(*found);
  }
  NameTable models;
  HeldSessions held;
  std::set<std::pair<uint64_t, uint64_t>> contents;  // of accepted sessions, without their names
  uint64_t copies = 0;
  uint32_t block_tokens = 0;
  const auto wanted = [&](const std::string& name) {
    return name.ends_with(".json") && name != "unique_traces.json" &&
           (unique.empty() || unique.contains(name));
  };
  const auto take = [&](const std::string& name, std::string_view text) -> Result<void> {
    const auto trace = parse_weka(text, name);
    if (!trace) return tl::unexpected(trace.error());
    if (block_tokens != 0 && block_tokens != trace->block_tokens) {
      return make_error(name, fmt::format("block_size is {}", trace->block_tokens),
                        fmt::format("{}, as in the files before it", block_tokens));
    }
    block_tokens = trace->block_tokens;
    auto built = weka_session(*trace, options.sharing, &models);
    if (!built) return tl::unexpected(built.error());
    v1::Session& session = *built;
    const std::string id = session.id();
    if (!options.all_files && unique.empty()) {
      session.clear_id();
      const std::string bytes = session.SerializeAsString();
      uint64_t a = 1, b = 2;
      for (const char byte : bytes) {
        a = (a ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
        b = mix64(b + static_cast<uint8_t>(byte));
      }
      if (!contents.emplace(a, b).second) return ++copies, Result<void>{};
      session.set_id(id);
    }
    auto good = held.hold(name, session);
    if (!good) good.error().where = path;
    return good;
  };
  if (auto good = for_each_document(path, wanted, take); !good) return good;
  if (held.size() == 0) return make_error(path, "holds no WEKA trace", "*.json files with \"requests\"");
  if (copies != 0) note(options, fmt::format("{} files are copies of others and were left out", copies));
  if (auto good = sink->header(weka_header(path, options, block_tokens, models.sorted())); !good) return good;
  if (auto good = held.emit(models.ranks(), sink); !good) return good;
  return sink->done();
}

}  // namespace kvtwin
