// LLMServingSim's JSONL: token ids and arrivals in ns; flat rows, or sessions of sub_requests.
//
// Identity is the token ids (GLOBAL). The prompt of a sub-request is compared, token by token, with the
// previous prompt and output, so that the repeated part is the same spans.

#include <fmt/format.h>

#include <algorithm>

#include "traces/format/compact_json.h"
#include "traces/format/json_fields.h"
#include "traces/format/source_files.h"
#include "traces/importers/importers.h"

namespace kvtwin {
namespace {

using nlohmann::json;
using Tokens = std::vector<uint32_t>;
using Runs = google::protobuf::RepeatedPtrField<v1::SpanRun>;

struct Row {
  uint32_t prompt_tokens = 0, output_tokens = 0;
  const Tokens* prompt = nullptr;  // null: not recorded
  const Tokens* output = nullptr;
  int64_t tool_ns = 0;
};

Result<Row> parse_row(const json& object, const CompactJson& document, const std::string& where) {
  JsonFields fields(object, where);
  Row row;
  row.prompt_tokens = fields.u32("input_toks");
  row.output_tokens = fields.u32("output_toks");
  row.tool_ns = fields.time_ns_if("tool_duration_ns", 1.0).value_or(0);
  const auto tokens = [&](const char* name, uint32_t count) -> const Tokens* {
    const auto index = fields.u64_if(name);
    if (!index || fields.failed()) return nullptr;
    const Tokens& ids = document.numbers[*index];
    if (ids.size() != count) {
      fields.problem(fmt::format("\"{}\" has {} ids for {} tokens", name, ids.size(), count),
                     "as many as tokens");
    }
    return &ids;
  };
  row.prompt = tokens("input_tok_ids", row.prompt_tokens);
  row.output = tokens("output_tok_ids", row.output_tokens);
  if (fields.failed()) return fields.error();
  return row;
}

// The current session: its spans, and the tokens of the context so far.
class Conversation {
 public:
  explicit Conversation(v1::Session* session) : session_(*session) {}

  v1::Node* add_request(const Row& row) {
    v1::Node* const node = session_.add_nodes();
    v1::LlmRequest& request = *node->mutable_llm();
    request.set_prompt_tokens(row.prompt_tokens);
    request.set_output_tokens(row.output_tokens);
    if (row.prompt == nullptr) {
      context_.clear();
      spans_.clear();
      return node;
    }
    const auto shared = static_cast<size_t>(
        std::mismatch(row.prompt->begin(), row.prompt->end(), context_.begin(), context_.end()).first -
        row.prompt->begin());
    keep(shared, request.mutable_prompt());
    context_.resize(shared);
    add_span(row.prompt->data() + shared, row.prompt->size() - shared, request.mutable_prompt());
    if (row.output != nullptr) add_span(row.output->data(), row.output->size(), request.mutable_output());
    return node;
  }

  // Whether the latest prompt repeated tokens of the context.
  bool repeats() const { return repeated_ > 0; }

 private:
  struct Piece {
    uint32_t span;
    uint32_t tokens;  // retained of it
  };

  void keep(size_t tokens, Runs* runs) {
    repeated_ = tokens;
    std::vector<Piece> kept;
    for (const Piece& piece : spans_) {
      if (tokens == 0) break;
      const auto take = static_cast<uint32_t>(std::min<size_t>(tokens, piece.tokens));
      list({piece.span, take}, runs);
      kept.push_back({piece.span, take});
      tokens -= take;
    }
    spans_ = std::move(kept);
  }

  void add_span(const uint32_t* ids, size_t count, Runs* runs) {
    if (count == 0) return;
    v1::Span& span = *session_.add_spans();
    span.set_tokens(static_cast<uint32_t>(count));
    span.set_scope(v1::SCOPE_GLOBAL);
    span.mutable_token_ids()->Add(ids, ids + count);
    context_.insert(context_.end(), ids, ids + count);
    spans_.push_back({static_cast<uint32_t>(session_.spans_size() - 1), static_cast<uint32_t>(count)});
    list(spans_.back(), runs);
  }

  void list(const Piece& piece, Runs* runs) const {
    v1::SpanRun& run = *runs->Add();
    run.set_first(piece.span);
    run.set_count(1);
    const bool whole = piece.tokens == session_.spans(static_cast<int>(piece.span)).tokens();
    run.set_keep_tokens(whole ? 0 : piece.tokens);
  }

  v1::Session& session_;
  Tokens context_;
  std::vector<Piece> spans_;  // of the context
  size_t repeated_ = 0;
};

Result<v1::Session> parse_session(const CompactJson& document, uint64_t line, const std::string& where) {
  JsonFields fields(document.tree, where);
  v1::Session session;
  const int64_t arrival = fields.time_ns("arrival_time_ns", 1.0);
  session.set_id(fields.text_if("session_id").value_or(fmt::format("{}", line)));
  session.set_arrival_at_ns(arrival);
  session.add_agents()->set_name("main");
  const bool agentic = fields.has("sub_requests");
  const json& list = fields.list("sub_requests");
  if (fields.failed()) return fields.error();
  if (agentic && list.empty()) return make_error(where, "\"sub_requests\" is empty");
  Conversation conversation(&session);
  int64_t tool_ns = 0;
  for (size_t i = 0; i < (agentic ? list.size() : 1); ++i) {
    const auto row = parse_row(agentic ? list[i] : document.tree, document,
                               agentic ? fmt::format("{}: sub_requests[{}]", where, i) : where);
    if (!row) return tl::unexpected(row.error());
    const auto previous = static_cast<uint32_t>(session.nodes_size() - 1);
    if (i > 0 && tool_ns > 0) {
      v1::Node& tool = *session.add_nodes();
      tool.mutable_tool()->set_duration_ns(tool_ns);
      tool.add_deps()->set_node(previous);
    }
    const int before = session.nodes_size() - 1;
    v1::Node& node = *conversation.add_request(*row);
    if (i == 0) {
      node.mutable_llm()->set_recorded_at_ns(arrival);
    } else {
      mark(&node, v1::LlmRequest::kRecordedAtNsFieldNumber, v1::UNKNOWN);
      v1::Dep& dep = *node.add_deps();
      dep.set_node(static_cast<uint32_t>(before));
      dep.set_kind(tool_ns == 0 && conversation.repeats() ? v1::DEP_DATA : v1::DEP_CONTROL);
    }
    tool_ns = row->tool_ns;
  }
  if (tool_ns > 0) add_extra(session.mutable_extras(), "last_tool_duration_ns", fmt::format("{}", tool_ns));
  return session;
}

v1::TraceHeader make_header(const std::string& path, bool agentic) {
  v1::TraceHeader header = imported_header("llmservingsim", path);
  header.mutable_source()->set_url("https://github.com/casys-kaist/LLMServingSim");
  header.mutable_source()->set_content_restricted(true);  // the token ids are conversations of people
  header.set_session_arrivals(v1::ARR_OPEN_LOOP);
  header.set_request_arrivals(agentic ? v1::ARR_NONE : v1::ARR_OPEN_LOOP);
  header.set_time_resolution_ns(1);
  for (const char* const field :
       {"LlmRequest.prompt_tokens", "LlmRequest.output_tokens", "Session.arrival_at_ns",
        "LlmRequest.recorded_at_ns", "Span.token_ids", "ToolCall.duration_ns"}) {
    add_policy(&header, field, v1::RECORDED);
  }
  for (const char* const field : {"Span.role", "LlmRequest.recorded_service_ns", "LlmRequest.think_ns"}) {
    add_policy(&header, field, v1::UNKNOWN);
  }
  return header;
}

}  // namespace

Result<void> import_llmservingsim(const std::string& path, const ImportOptions&, TraceSink* sink) {
  bool started = false;
  const auto take = [&](uint64_t line, std::string_view text) -> Result<void> {
    const std::string where = fmt::format("{}:{}", path, line);
    const auto document = parse_compact_json(text, {.run_key = {}, .number_suffix = "_tok_ids"});
    if (!document)
      return make_error(where, document.error().where + " " + document.error().what, "one object a line");
    const auto session = parse_session(*document, line, where);
    if (!session) return tl::unexpected(session.error());
    if (!started) {
      started = true;
      auto good = sink->header(make_header(path, document->tree.contains("sub_requests")));
      if (!good) return good;
    }
    return sink->session(*session);
  };
  if (auto good = for_each_line(path, take); !good) return good;
  if (!started) return make_error(path, "holds no rows", "one JSON object a line");
  return sink->done();
}

}  // namespace kvtwin
