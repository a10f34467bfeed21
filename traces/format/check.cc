#include "traces/format/check.h"

#include <fmt/format.h>
#include <google/protobuf/repeated_ptr_field.h>

#include <numeric>
#include <vector>

#include "engine/base/units.h"
#include "traces/format/block_key.h"

namespace kvtwin {
namespace {

constexpr int64_t kTimeMax = int64_t{1} << 61;
constexpr uint32_t kSpanTokensMax = 1u << 30;

constexpr uint64_t kSharedSpansMax = 4u << 20;

using Spans = google::protobuf::RepeatedPtrField<v1::Span>;

// Entry i is the number of tokens before span i; the last entry is the total.
std::vector<uint64_t> tokens_before(const Spans& spans) {
  std::vector<uint64_t> before{0};
  before.reserve(static_cast<size_t>(spans.size()) + 1);
  for (const v1::Span& span : spans) before.push_back(before.back() + span.tokens());
  return before;
}

Result<void> check_span(const v1::Span& span, const std::string& where) {
  if (span.tokens() > kSpanTokensMax)
    return make_error(where, fmt::format("{} tokens", span.tokens()), "at most 2^30");
  if (span.token_ids_size() != 0 && static_cast<uint32_t>(span.token_ids_size()) != span.tokens()) {
    return make_error(where, fmt::format("{} token ids for {} tokens", span.token_ids_size(), span.tokens()));
  }
  if (!span.content_hash().empty() && span.content_hash().size() != 16) {
    return make_error(where, fmt::format("a content_hash of {} bytes", span.content_hash().size()),
                      "16, or none");
  }
  if (span.has_text() && span.text().offset() > UINT64_MAX - span.text().length()) {
    return make_error(where, fmt::format("text at byte {}", span.text().offset()),
                      "a place in the blob file");
  }
  return {};
}

// The checks of one session; its members are their common state.
class Checking {
 public:
  Checking(const v1::TraceHeader& header, const std::map<uint32_t, std::vector<uint64_t>>& tables,
           const v1::Session& session)
      : header_(header), tables_(tables), session_(session), session_spans_(tokens_before(session.spans())) {}

  Result<void> run() {
    where_ = fmt::format("session '{}'", session_.id());
    if (session_.nodes_size() == 0) return problem("has no nodes", "at least one request");
    if (session_.agents_size() == 0) return problem("has no agents", "agent 0 is the main agent");
    for (const v1::Agent& agent : session_.agents()) {
      if (agent.parent() >= agents()) return problem(fmt::format("an agent has parent {}", agent.parent()));
      if (!model_exists(agent.model())) return problem(fmt::format("an agent has model {}", agent.model()));
    }
    if (!wait(session_.arrival_at_ns()))
      return problem(fmt::format("arrives at {} ns", session_.arrival_at_ns()));
    for (int i = 0; i < session_.spans_size(); ++i) {
      auto good = check_span(session_.spans(i), fmt::format("{} span {}", where_, i));
      if (!good) return good;
    }
    const std::string session_where = where_;
    for (int i = 0; i < session_.nodes_size(); ++i) {
      where_ = fmt::format("{} node {}", session_where, i);
      if (auto good = node(i); !good) return good;
    }
    where_ = session_where;
    return connected();
  }

 private:
  tl::unexpected<Error> problem(std::string what, std::string hint = {}) const {
    return make_error(where_, std::move(what), std::move(hint));
  }
  uint32_t agents() const { return static_cast<uint32_t>(session_.agents_size()); }
  bool model_exists(uint32_t model) const {
    return model < static_cast<uint32_t>(header_.models_size()) || (model == 0 && header_.models_size() == 0);
  }
  // Subtracts `ns` from the time that this session may still wait; false if it is negative or too much.
  bool wait(int64_t ns) {
    if (ns < 0 || ns > wait_left_) return false;
    wait_left_ -= ns;
    return true;
  }
  static bool evidence(int64_t ns) { return ns >= 0 && ns <= kTimeMax; }

  Result<void> node(int index) {
    const v1::Node& node = session_.nodes(index);
    if (node.agent() >= agents()) return problem(fmt::format("belongs to agent {}", node.agent()));
    if (!wait(node.start_offset_ns())) return problem(fmt::format("starts at {} ns", node.start_offset_ns()));
    for (const v1::Dep& dep : node.deps()) {
      if (auto good = dependency(index, dep); !good) return good;
    }
    switch (node.kind_case()) {
      case v1::Node::kLlm:
        return request(node.llm());
      case v1::Node::kTool:
        return tool(node.tool());
      case v1::Node::kOpaque:
        if (!wait(node.opaque().duration_ns()) || !evidence(node.opaque().recorded_at_ns())) {
          return problem(fmt::format("takes {} ns", node.opaque().duration_ns()));
        }
        return span_index(node.opaque().result_span());
      case v1::Node::KIND_NOT_SET:
        break;
    }
    return problem("is neither a request, a tool nor a sub-agent");
  }

  Result<void> dependency(int index, const v1::Dep& dep) {
    if (dep.node() >= static_cast<uint32_t>(index)) {
      return problem(fmt::format("depends on node {}", dep.node()), "dependencies point to earlier nodes");
    }
    if (!v1::DepKind_IsValid(dep.kind()))
      return problem(fmt::format("has a dependency of kind {}", dep.kind()));
    if (!wait(dep.delay_ns())) return problem(fmt::format("has a delay of {} ns", dep.delay_ns()));
    const v1::Node& source = session_.nodes(static_cast<int>(dep.node()));
    if (dep.at_output_token() != 0 &&
        (!source.has_llm() || dep.at_output_token() > source.llm().output_tokens())) {
      return problem(fmt::format("waits for output token {} of node {}", dep.at_output_token(), dep.node()),
                     "a token that the request emits");
    }
    return {};
  }

  Result<void> tool(const v1::ToolCall& tool) {
    if (tool.tool() > static_cast<uint32_t>(header_.tool_names_size())) {
      return problem(fmt::format("requests tool {}", tool.tool()),
                     fmt::format("of {}", header_.tool_names_size()));
    }
    if (!wait(tool.duration_ns()) || !evidence(tool.recorded_at_ns())) {
      return problem(fmt::format("takes {} ns from {} ns", tool.duration_ns(), tool.recorded_at_ns()));
    }
    if (auto good = span_index(tool.call_span()); !good) return good;
    return span_index(tool.result_span());
  }

  Result<void> span_index(uint32_t one_based) const {
    if (one_based <= static_cast<uint32_t>(session_.spans_size())) return {};
    return problem(fmt::format("names span {}", one_based - 1),
                   fmt::format("the session has {} spans", session_.spans_size()));
  }

  Result<void> request(const v1::LlmRequest& request) {
    if (!model_exists(request.model())) return problem(fmt::format("requests model {}", request.model()));
    if (request.prompt_tokens() > kSpanTokensMax || request.output_tokens() > kSpanTokensMax) {
      return problem(
          fmt::format("{} prompt and {} output tokens", request.prompt_tokens(), request.output_tokens()),
          "at most 2^30 each");
    }
    if (!wait(request.think_ns())) return problem(fmt::format("think time of {} ns", request.think_ns()));
    if (!evidence(request.recorded_at_ns()) || !evidence(request.recorded_ttft_ns()) ||
        !evidence(request.recorded_service_ns())) {
      return problem("a recorded time is negative or above 2^61 ns");
    }
    if (auto good = runs(request.prompt(), request.prompt_tokens(), "prompt"); !good) return good;
    if (auto good = runs(request.output(), request.output_tokens(), "output"); !good) return good;
    if (request.has_prompt_key()) return key(request);
    return {};
  }

  Result<void> key(const v1::LlmRequest& request) const {
    const Result<IdRuns> ids = decode_key(request.prompt_key());
    if (!ids) return problem(ids.error().what, ids.error().hint);
    const uint64_t block = header_.block_tokens();
    if (block == 0) return problem("has block ids, but the header has no block_tokens");
    const uint64_t tokens = request.prompt_tokens();
    const uint64_t most = header_.tail_block_hashed() ? div_ceil(tokens, block) : tokens / block;
    if (blocks_in(*ids) > most) {
      return problem(fmt::format("{} block ids for {} tokens", blocks_in(*ids), tokens),
                     fmt::format("at most {} blocks of {}", most, block));
    }
    return {};
  }

  template <typename Runs>
  Result<void> runs(const Runs& runs, uint64_t tokens, const char* what) const {
    if (runs.empty()) return {};
    uint64_t sum = 0;
    for (const v1::SpanRun& run : runs) {
      const std::vector<uint64_t>* before = &session_spans_;
      if (run.table() != 0) {
        const auto table = tables_.find(run.table());
        if (table == tables_.end())
          return problem(fmt::format("{} uses table {}, not defined before", what, run.table()));
        before = &table->second;
      }
      const uint64_t end = uint64_t{run.first()} + run.count();
      if (run.count() == 0 || end >= before->size()) {
        return problem(fmt::format("{} run of {} spans from {}", what, run.count(), run.first()),
                       fmt::format("within {} spans", before->size() - 1));
      }
      sum += (*before)[end] - (*before)[run.first()];
      if (sum > 2 * uint64_t{kSpanTokensMax})
        return problem(fmt::format("{} spans exceed 2^31 tokens", what));
      const uint64_t last = (*before)[end] - (*before)[end - 1];
      if (run.keep_tokens() > last) {
        return problem(fmt::format("{} keeps {} tokens of a span of {}", what, run.keep_tokens(), last));
      }
      if (run.keep_tokens() != 0) sum -= last - run.keep_tokens();
    }
    if (sum != tokens) {
      return problem(fmt::format("{} spans sum to {} tokens, {}_tokens is {}", what, sum, what, tokens),
                     "they must be equal");
    }
    return {};
  }

  // Union-find over the dependencies, read as undirected edges.
  Result<void> connected() const {
    std::vector<int> parent(static_cast<size_t>(session_.nodes_size()));
    std::iota(parent.begin(), parent.end(), 0);
    const auto root = [&parent](int i) {
      while (parent[static_cast<size_t>(i)] != i) {
        int& up = parent[static_cast<size_t>(i)];
        up = parent[static_cast<size_t>(up)];
        i = up;
      }
      return i;
    };
    int parts = session_.nodes_size();
    for (int i = 0; i < session_.nodes_size(); ++i) {
      for (const v1::Dep& dep : session_.nodes(i).deps()) {
        const int a = root(i), b = root(static_cast<int>(dep.node()));
        if (a != b) parent[static_cast<size_t>(a)] = b, --parts;
      }
    }
    if (parts == 1) return {};
    return problem(fmt::format("falls into {} parts", parts),
                   "one session is one connected graph: make several");
  }

  const v1::TraceHeader& header_;
  const std::map<uint32_t, std::vector<uint64_t>>& tables_;
  const v1::Session& session_;
  const std::vector<uint64_t> session_spans_;
  std::string where_;
  int64_t wait_left_ = kTimeMax;
};

}  // namespace

Result<void> SessionChecker::header(const v1::TraceHeader& header) {
  if (header.schema_version() != kTraceSchemaVersion) {
    return make_error("header", fmt::format("schema_version is {}", header.schema_version()),
                      fmt::format("this kvtwin reads {}", kTraceSchemaVersion));
  }
  header_ = header;
  return {};
}

Result<void> SessionChecker::shared_spans(const v1::SharedSpanTable& table) {
  const std::string where = fmt::format("shared spans {}", table.table());
  if (table.table() == 0 || tables_.contains(table.table())) {
    return make_error(where, "is defined twice or has number 0", "tables have their own numbers from 1");
  }
  for (const v1::Span& span : table.spans()) {
    if (auto good = check_span(span, where); !good) return good;
  }
  shared_spans_ += static_cast<uint64_t>(table.spans_size());
  if (shared_spans_ > kSharedSpansMax) return make_error(where, "more than 4 Mi shared spans in all");
  tables_.emplace(table.table(), tokens_before(table.spans()));
  return {};
}

Result<void> SessionChecker::session(const v1::Session& session) const {
  return Checking(header_, tables_, session).run();
}

void SessionChecker::count(const v1::Session& session, v1::TraceFooter* footer) const {
  footer->set_sessions(footer->sessions() + 1);
  for (const v1::Node& node : session.nodes()) {
    if (node.has_tool()) footer->set_tool_calls(footer->tool_calls() + 1);
    if (!node.has_llm()) continue;
    footer->set_llm_requests(footer->llm_requests() + 1);
    footer->set_prompt_tokens(footer->prompt_tokens() + node.llm().prompt_tokens());
    footer->set_output_tokens(footer->output_tokens() + node.llm().output_tokens());
  }
}

}  // namespace kvtwin
