// mooncake-delta: each row holds the new part of its session's prompt since the previous row and output.
//
// So prompt k = (row 0, output 0, ..., row k-1, output k-1, row k). The segments do not start on block
// boundaries of the whole prompt, so there is no prompt_key: every hash id becomes a span whose content_hash
// is computed from the id, comparable across the data set, and outputs are spans of their own.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/prng.h"
#include "traces/importers/importers.h"
#include "traces/importers/mooncake.h"

namespace kvtwin {
namespace {

constexpr uint64_t kSpansMax = 1u << 20;  // per session

class DeltaSession {
 public:
  DeltaSession(v1::Session* session, uint32_t block) : session_(*session), block_(block) {}

  Result<void> add(const MooncakeRow& row, const MooncakeRow* before, const std::string& path) {
    const std::string where = fmt::format("{}:{}", path, row.line);
    for (const IdRun& run : row.ids) {
      if (session_.spans_size() + uint64_t{run.count} > kSpansMax) {
        return make_error(where, fmt::format("its session has more than {} blocks", kSpansMax), "cut it");
      }
      for (uint32_t k = 0; k < run.count; ++k) add_block(run.first + k, row.prompt_tokens);
    }
    if (uint64_t{row.prompt_tokens} > in_row_) add_span(row.prompt_tokens - static_cast<uint32_t>(in_row_));
    in_row_ = 0;
    MooncakeRow whole = row;
    if (tokens_ > (1u << 30))
      return make_error(where, fmt::format("its prompt has {} tokens", tokens_), "at most 2^30");
    whole.prompt_tokens = static_cast<uint32_t>(tokens_);
    v1::Node& node = *add_mooncake_request(whole, false, &session_);
    v1::LlmRequest& request = *node.mutable_llm();
    if (session_.spans_size() > 0) {
      v1::SpanRun& all = *request.add_prompt();  // history is append-only: all spans so far
      all.set_count(static_cast<uint32_t>(session_.spans_size()));
    }
    if (row.output_tokens > 0) {
      add_span(row.output_tokens);
      v1::SpanRun& output = *request.add_output();
      output.set_first(static_cast<uint32_t>(session_.spans_size() - 1));
      output.set_count(1);
      in_row_ = 0;
    }
    time(row, before, &node);
    return {};
  }

 private:
  void time(const MooncakeRow& row, const MooncakeRow* before, v1::Node* node) {
    v1::LlmRequest& request = *node->mutable_llm();
    if (row.at_ns)
      request.set_recorded_at_ns(*row.at_ns);
    else
      mark(node, v1::LlmRequest::kRecordedAtNsFieldNumber, v1::UNKNOWN);
    if (before == nullptr) return;
    v1::Dep& dep = *node->add_deps();
    dep.set_node(static_cast<uint32_t>(session_.nodes_size() - 2));
    dep.set_kind(v1::DEP_DATA);
    if (row.delay_ns) {
      request.set_think_ns(*row.delay_ns);
    } else if (row.at_ns && before->at_ns) {
      const auto& earlier = session_.nodes(static_cast<int>(dep.node())).llm();
      const int64_t service = estimated_service_ns(earlier.prompt_tokens(), earlier.output_tokens());
      request.set_think_ns(std::max<int64_t>(0, *row.at_ns - *before->at_ns - service));
      mark(node, v1::LlmRequest::kThinkNsFieldNumber, v1::ESTIMATED, kMooncakeServiceRecipe);
    } else {
      mark(node, v1::LlmRequest::kThinkNsFieldNumber, v1::UNKNOWN);
    }
  }

  void add_block(int64_t id, uint32_t row_tokens) {
    const uint64_t left = row_tokens - in_row_;
    if (left == 0) return;
    v1::Span& span = add_span(static_cast<uint32_t>(std::min<uint64_t>(block_, left)));
    // Two draws of 64 bits from the id: equal ids give equal hashes; a shorter last block is other content.
    std::string& hash = *span.mutable_content_hash();
    for (const uint64_t word : {draw({static_cast<uint64_t>(id), span.tokens(), 0}),
                                draw({static_cast<uint64_t>(id), span.tokens(), 1})}) {
      for (int shift = 0; shift < 64; shift += 8) hash.push_back(static_cast<char>(word >> shift));
    }
    span.set_scope(v1::SCOPE_DATASET);
  }

  v1::Span& add_span(uint32_t tokens) {
    v1::Span& span = *session_.add_spans();
    span.set_tokens(tokens);
    span.set_scope(v1::SCOPE_SESSION);
    tokens_ += tokens;
    in_row_ += tokens;
    return span;
  }

  v1::Session& session_;
  const uint32_t block_;
  uint64_t tokens_ = 0;  // of the whole context
  uint64_t in_row_ = 0;  // of the current row
};

}  // namespace

Result<void> import_mooncake_delta(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  const uint32_t block = options.block_tokens != 0 ? options.block_tokens : kMooncakeBlockTokens;
  const auto rows = read_mooncake_rows(path, block);
  if (!rows) return tl::unexpected(rows.error());
  std::map<std::string, size_t> index_of;
  std::vector<std::vector<const MooncakeRow*>> sessions;
  for (const MooncakeRow& row : *rows) {
    if (row.session.empty()) {
      sessions.push_back({&row});
      continue;
    }
    const auto [it, added] = index_of.emplace(row.session, sessions.size());
    if (added) sessions.emplace_back();
    sessions[it->second].push_back(&row);
  }
  v1::TraceHeader header = mooncake_header("mooncake-delta", path, options, *rows);
  header.set_request_arrivals(v1::ARR_CLOSED_LOOP);
  header.set_block_tokens(0);  // identity is in the spans
  header.set_tail_block_hashed(false);
  header.set_block_ids_chained(false);
  add_policy(&header, "Span.content_hash", v1::DERIVED);
  if (auto good = sink->header(header); !good) return good;
  for (const auto& members : sessions) {
    const MooncakeRow& first = *members.front();
    if (!first.at_ns) {
      return make_error(fmt::format("{}:{}", path, first.line), "has no timestamp",
                        "the first row of a session arrives at one");
    }
    v1::Session session;
    start_mooncake_session(first.session.empty() ? fmt::format("{}", first.line) : first.session,
                           *first.at_ns, &session);
    DeltaSession delta(&session, block);
    for (size_t i = 0; i < members.size(); ++i) {
      if (auto good = delta.add(*members[i], i == 0 ? nullptr : members[i - 1], path); !good) return good;
    }
    if (auto good = sink->session(session); !good) return good;
  }
  return sink->done();
}

}  // namespace kvtwin
