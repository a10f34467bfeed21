#include "traces/replay/replay_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "traces/replay/replay_roles.h"

namespace kvtwin {
namespace {

constexpr uint32_t kTokensMax = 1u << 30;  // per prompt or output
constexpr uint64_t kNodesMax = 1u << 28;

Provenance policy(const v1::TraceHeader& header, std::string_view field) {
  Provenance found{};
  for (const v1::FieldPolicy& entry : header.policies()) {
    if (entry.field() == field && v1::Prov_IsValid(entry.prov()))
      found = static_cast<Provenance>(entry.prov());
  }
  return found;
}

// `field` is a field number of the message of the node's kind (docs/design/trace-formats.md#importers).
Provenance override_of(const v1::Node& node, uint32_t field, Provenance otherwise) {
  for (const v1::ProvOverride& entry : node.prov()) {
    if (entry.field() == field && v1::Prov_IsValid(entry.prov()) && entry.prov() != v1::PROV_UNSPECIFIED) {
      otherwise = static_cast<Provenance>(entry.prov());
    }
  }
  return otherwise;
}

Result<void> check_time(int64_t ns, const std::string& where, const char* field) {
  if (ns >= 0 && ns <= kReplayTimeMax) return {};
  return make_error(where, fmt::format("{} is {}", field, ns), fmt::format("0 to {} ns", kReplayTimeMax));
}

uint64_t span_tokens(const v1::Session& session,
                     const google::protobuf::RepeatedPtrField<v1::SpanRun>& runs) {
  uint64_t tokens = 0;
  for (const v1::SpanRun& run : runs) {
    const uint64_t end = uint64_t{run.first()} + run.count();
    if (run.table() != 0 || end > static_cast<uint64_t>(session.spans_size())) continue;
    for (uint64_t i = run.first(); i < end && tokens <= kTokensMax; ++i) {
      const uint32_t whole = session.spans(static_cast<int>(i)).tokens();
      tokens += i + 1 == end && run.keep_tokens() != 0 ? std::min(whole, run.keep_tokens()) : whole;
    }
  }
  return tokens;
}

}  // namespace

Result<void> ReplayBuilder::header(const v1::TraceHeader& header) {
  if (header_seen_) return make_error("header", "appears twice", "one header, before everything else");
  header_seen_ = true;
  identities_.header(header);
  table_.has_session_arrivals = header.session_arrivals() != v1::ARR_NONE;
  table_.has_request_times = header.request_arrivals() != v1::ARR_NONE;
  const double resolution = header.time_resolution_ns();
  table_.time_resolution_ns = resolution > 0 && resolution < 1e15 ? static_cast<int64_t>(resolution) : 0;
  table_.delay_provenance = policy(header, "Dep.delay_ns");
  policies_.prompt = policy(header, "LlmRequest.prompt_tokens");
  policies_.output = policy(header, "LlmRequest.output_tokens");
  policies_.think = policy(header, "LlmRequest.think_ns");
  policies_.tool = policy(header, "ToolCall.duration_ns");
  policies_.opaque = policy(header, "OpaqueAgent.duration_ns");
  return {};
}

Result<void> ReplayBuilder::shared_spans(const v1::SharedSpanTable& table) {
  if (!header_seen_) return make_error("trace", "a shared span table comes before the header");
  if (roles_ || spans_) shared_[table.table()].mutable_spans()->MergeFrom(table.spans());
  return identities_.shared_spans(table);
}

Result<void> ReplayBuilder::session(const v1::Session& session) {
  if (!header_seen_)
    return make_error("trace", "a session comes before the header", "the header comes first");
  const std::string where = fmt::format("session {} \"{}\"", table_.sessions.size(), session.id());
  if (auto ok = check_time(session.arrival_at_ns(), where, "arrival_at_ns"); !ok) return ok;
  if (table_.nodes.size() + static_cast<size_t>(session.nodes_size()) > kNodesMax) {
    return make_error(where, fmt::format("with it, the trace has more than {} nodes", kNodesMax),
                      "cut the trace");
  }
  identities_.begin_session(session);
  TableSession row;
  row.id = session.id();
  row.arrival_ns = session.arrival_at_ns();
  row.node_first = static_cast<uint32_t>(table_.nodes.size());
  row.node_count = static_cast<uint32_t>(session.nodes_size());
  table_.sessions.push_back(std::move(row));
  uint32_t requests = 0;
  for (int index = 0; index < session.nodes_size(); ++index) {
    const std::string node_where = fmt::format("{}, node {}", where, index);
    if (auto ok = node(session, index, node_where); !ok) return ok;
    if (session.nodes(index).has_llm()) table_.nodes.back().index = requests++;
  }
  link(session);
  return {};
}

Result<void> ReplayBuilder::node(const v1::Session& session, int index, const std::string& where) {
  const v1::Node& node = session.nodes(index);
  TableNode row;
  row.agent = node.agent();
  row.start_offset_ns = node.start_offset_ns();
  if (auto ok = check_time(row.start_offset_ns, where, "start_offset_ns"); !ok) return ok;
  switch (node.kind_case()) {
    case v1::Node::kLlm:
      if (auto ok = request(session, node, &row, where); !ok) return ok;
      break;
    case v1::Node::kTool:
      row.kind = NodeKind::kTool;
      row.wait_ns = node.tool().duration_ns();
      row.tool = node.tool().tool();
      row.recorded_at_ns = node.tool().recorded_at_ns();
      row.wait_provenance = override_of(node, v1::ToolCall::kDurationNsFieldNumber, policies_.tool);
      table_.has_tools = true;
      break;
    case v1::Node::kOpaque:
      row.kind = NodeKind::kOpaqueAgent;
      row.wait_ns = node.opaque().duration_ns();
      row.recorded_at_ns = node.opaque().recorded_at_ns();
      row.wait_provenance = override_of(node, v1::OpaqueAgent::kDurationNsFieldNumber, policies_.opaque);
      break;
    case v1::Node::KIND_NOT_SET:
      return make_error(where, "is neither llm, tool nor opaque", "one of the three");
  }
  if (auto ok = check_time(row.wait_ns, where, row.kind == NodeKind::kRequest ? "think_ns" : "duration_ns");
      !ok) {
    return ok;
  }
  if (auto ok = check_time(row.recorded_at_ns, where, "recorded_at_ns"); !ok) return ok;
  table_.nodes.push_back(row);
  return deps(session, index, where);
}

Result<void> ReplayBuilder::request(const v1::Session& session, const v1::Node& node, TableNode* row,
                                    const std::string& where) {
  const v1::LlmRequest& request = node.llm();
  row->kind = NodeKind::kRequest;
  row->wait_ns = request.think_ns();
  row->recorded_at_ns = request.recorded_at_ns();
  row->recorded_service_ns = request.recorded_service_ns();
  row->recorded_ttft_ns = request.recorded_ttft_ns();
  row->model = request.model();
  row->turn = request.turn();
  row->abort_after = request.abort_after_tokens();
  // proto3 does not distinguish 0 from absent; then the sum of the spans counts.
  const uint64_t prompt =
      request.prompt_tokens() != 0 ? request.prompt_tokens() : span_tokens(session, request.prompt());
  const uint64_t output =
      request.output_tokens() != 0 ? request.output_tokens() : span_tokens(session, request.output());
  if (prompt > kTokensMax || output > kTokensMax) {
    return make_error(where, fmt::format("has {} prompt and {} output tokens", prompt, output),
                      fmt::format("at most {} of each", kTokensMax));
  }
  row->prompt_tokens = static_cast<uint32_t>(prompt);
  // A prefill always samples one token, so a request without output does not exist in an engine.
  row->output_tokens = std::max<uint32_t>(1, static_cast<uint32_t>(output));
  if (roles_ || spans_) roles(session, request, row);
  row->prompt_provenance = override_of(node, v1::LlmRequest::kPromptTokensFieldNumber, policies_.prompt);
  row->output_provenance = override_of(node, v1::LlmRequest::kOutputTokensFieldNumber, policies_.output);
  row->wait_provenance = override_of(node, v1::LlmRequest::kThinkNsFieldNumber, policies_.think);
  return identities_.request(session, request, static_cast<uint32_t>(table_.nodes.size()), row->prompt_tokens,
                             where);
}

void ReplayBuilder::roles(const v1::Session& session, const v1::LlmRequest& request, TableNode* row) {
  const auto find = [&](uint32_t table, uint32_t index) -> const v1::Span* {
    const auto shared = table == 0 ? shared_.end() : shared_.find(table);
    if (table != 0 && shared == shared_.end()) return nullptr;
    const auto& spans = table == 0 ? session.spans() : shared->second.spans();
    return index < static_cast<uint32_t>(spans.size()) ? &spans[static_cast<int>(index)] : nullptr;
  };
  ++table_.requests;
  if (spans_) row->spans = prompt_spans(request, row->prompt_tokens, find);
  table_.spans_unknown += spans_ && !row->spans.known();
  if (!roles_) return;
  PromptRoles found = prompt_roles(request, find);
  row->role_first = static_cast<uint32_t>(table_.roles.size());
  row->role_count = static_cast<uint32_t>(found.runs.size());
  table_.roles.insert(table_.roles.end(), found.runs.begin(), found.runs.end());
  table_.roles_unknown += found.unknown_tokens;
}

Result<void> ReplayBuilder::deps(const v1::Session& session, int index, const std::string& where) {
  TableNode& row = table_.nodes.back();
  const size_t first = table_.nodes.size() - 1 - static_cast<size_t>(index);
  for (const v1::Dep& dep : session.nodes(index).deps()) {
    if (dep.node() >= static_cast<uint32_t>(index)) {
      return make_error(where, fmt::format("waits for node {}", dep.node()), "dependencies point backwards");
    }
    if (dep.delay_ns() < -kReplayTimeMax || dep.delay_ns() > kReplayTimeMax) {
      return make_error(where, fmt::format("delay_ns is {}", dep.delay_ns()));
    }
    TableNode& source = table_.nodes[first + dep.node()];
    if (dep.at_output_token() != 0 && source.kind != NodeKind::kRequest) {
      return make_error(where,
                        fmt::format("waits for output token {} of node {}, which is no request",
                                    dep.at_output_token(), dep.node()),
                        "at_output_token 0");
    }
    ++row.deps;
    row.deps_data += dep.kind() == v1::DEP_DATA;
    ++source.edge_count;
    table_.has_deps = true;
  }
  return {};
}

// Inverts dependencies ("waits for" to "is waited for by") and collects token triggers.
void ReplayBuilder::link(const v1::Session& session) {
  const size_t first = table_.sessions.back().node_first;
  auto next = static_cast<uint32_t>(table_.edges.size());
  for (size_t i = first; i < table_.nodes.size(); ++i) {
    table_.nodes[i].edge_first = next;
    next += table_.nodes[i].edge_count;
    table_.nodes[i].edge_count = 0;
  }
  table_.edges.resize(next);
  for (int index = 0; index < session.nodes_size(); ++index) {
    for (const v1::Dep& dep : session.nodes(index).deps()) {
      TableNode& source = table_.nodes[first + dep.node()];
      table_.edges[source.edge_first + source.edge_count++] = {
          dep.delay_ns(), static_cast<uint32_t>(index), dep.at_output_token(), dep.kind() == v1::DEP_DATA};
    }
  }
  for (size_t i = first; i < table_.nodes.size(); ++i) {
    TableNode& row = table_.nodes[i];
    if (row.kind != NodeKind::kRequest) continue;
    row.trigger_first = static_cast<uint32_t>(table_.triggers.size());
    // Token 1 is always announced; the last one is the end of the request.
    const auto add = [&](uint32_t token) {
      if (token > 1 && token < row.output_tokens) table_.triggers.push_back(token);
    };
    for (uint32_t edge = 0; edge < row.edge_count; ++edge) add(table_.edges[row.edge_first + edge].at_token);
    add(row.abort_after);
    const auto begin = table_.triggers.begin() + row.trigger_first;
    std::sort(begin, table_.triggers.end());
    table_.triggers.erase(std::unique(begin, table_.triggers.end()), table_.triggers.end());
    row.trigger_count = static_cast<uint32_t>(table_.triggers.size()) - row.trigger_first;
  }
}

// Drops later sessions, and later nodes of the last one. Nodes are in topological order, so no remaining node
// waits for a dropped one.
void ReplayBuilder::cut(const ReplayOptions& options) {
  if (options.sessions_max != 0 && options.sessions_max < table_.sessions.size()) {
    table_.sessions.resize(options.sessions_max);
  }
  if (options.requests_max == 0) return;
  uint64_t requests = 0;
  for (size_t s = 0; s < table_.sessions.size(); ++s) {
    TableSession& session = table_.sessions[s];
    for (uint32_t i = 0; i < session.node_count; ++i) {
      if (table_.nodes[session.node_first + i].kind != NodeKind::kRequest ||
          ++requests < options.requests_max)
        continue;
      session.node_count = i + 1;
      table_.sessions.resize(s + 1);
      return;
    }
  }
}

Result<std::unique_ptr<ReplayClient>> ReplayBuilder::build(const ReplayOptions& options) {
  if (auto ok = validate(options); !ok) return tl::unexpected(ok.error());
  if (!header_seen_) return make_error("trace", "has no header");
  ReplayOptions resolved = options;
  if (resolved.mode == ReplayMode::kAuto) {
    const bool closed = table_.has_deps || !table_.has_request_times || !table_.has_session_arrivals;
    resolved.mode = closed ? ReplayMode::kClosedLoop : ReplayMode::kOpenLoop;
  }
  if (resolved.mode != ReplayMode::kClosedLoop && !table_.has_request_times) {
    return make_error("mode", "is open loop, but the trace records no request times", "closed_loop");
  }
  if (resolved.arrivals == ArrivalMode::kRecorded && !table_.has_session_arrivals) {
    return make_error("arrivals", "are to be the recorded ones, but the trace records none",
                      "poisson, fixed_population or all_at_once");
  }
  table_.unit_tokens = identities_.unit_tokens(options.page_tokens);
  if (auto ok = identities_.resolve(&table_); !ok) return tl::unexpected(ok.error());
  cut(options);
  if (table_.sessions.size() * uint64_t{options.replicas} > UINT32_MAX) {
    return make_error("replicas",
                      fmt::format("{} copies of {} sessions", options.replicas, table_.sessions.size()),
                      "fewer than 2^32 sessions in all");
  }
  identities_ = IdentityStore();
  return std::make_unique<ReplayClient>(std::move(table_), resolved);
}

}  // namespace kvtwin
