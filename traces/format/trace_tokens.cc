#include "traces/format/trace_tokens.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtwin {

Result<void> TraceTokens::header(const v1::TraceHeader& header) {
  wanted_ = header.tokenizers_size() > 0 && header.tokenizers(0).vocab() == vocab_ && vocab_ > 0;
  return {};
}

Result<TraceTokens::Spans> TraceTokens::keep(const google::protobuf::RepeatedPtrField<v1::Span>& spans,
                                             const std::string& where) const {
  Spans out;
  for (const v1::Span& span : spans) {
    out.begins.push_back(out.ids.size());
    out.known.push_back(static_cast<uint32_t>(span.token_ids_size()) == span.tokens());
    for (const uint32_t id : span.token_ids()) {
      if (id >= vocab_) {
        return make_error(where, fmt::format("has token id {}", id),
                          fmt::format("its tokenizer's vocabulary has {}", vocab_));
      }
    }
    out.ids.insert(out.ids.end(), span.token_ids().begin(), span.token_ids().end());
  }
  out.begins.push_back(out.ids.size());
  return out;
}

Result<void> TraceTokens::shared_spans(const v1::SharedSpanTable& table) {
  if (!wanted_) return {};
  Result<Spans> kept = keep(table.spans(), fmt::format("shared span table {}", table.table()));
  if (!kept) return tl::unexpected<Error>(kept.error());
  tables_[table.table()] = std::move(*kept);
  return {};
}

Result<void> TraceTokens::session(const v1::Session& session) {
  if (!wanted_) return {};
  Result<Spans> kept = keep(session.spans(), fmt::format("session \"{}\"", session.id()));
  if (!kept) return tl::unexpected<Error>(kept.error());
  Session& own = sessions_.emplace_back();
  own.session_spans = std::move(*kept);
  const bool any = std::find(own.session_spans.known.begin(), own.session_spans.known.end(), true) !=
                   own.session_spans.known.end();
  for (int i = 0; i < session.nodes_size(); ++i) {
    if (!session.nodes(i).has_llm()) continue;
    const v1::LlmRequest& request = session.nodes(i).llm();
    std::vector<v1::SpanRun>& runs = own.requests[static_cast<uint32_t>(i)];
    runs.assign(request.prompt().begin(), request.prompt().end());
    runs.insert(runs.end(), request.output().begin(), request.output().end());
    requests_ += any;
  }
  return {};
}

// Returns false if the run has spans without ids.
bool TraceTokens::append(const Session& session, const v1::SpanRun& run, std::vector<uint32_t>* out) const {
  const auto table = tables_.find(run.table());
  if (run.table() != 0 && table == tables_.end()) return false;
  const Spans& spans = run.table() == 0 ? session.session_spans : table->second;
  for (uint64_t i = run.first(); i < uint64_t{run.first()} + run.count(); ++i) {
    if (i >= spans.known.size() || !spans.known[i]) return false;
    size_t end = spans.begins[i + 1];
    const bool last = i + 1 == uint64_t{run.first()} + run.count();
    if (last && run.keep_tokens() > 0) end = std::min(end, spans.begins[i] + run.keep_tokens());
    out->insert(out->end(), spans.ids.begin() + static_cast<ptrdiff_t>(spans.begins[i]),
                spans.ids.begin() + static_cast<ptrdiff_t>(end));
  }
  return true;
}

std::vector<uint32_t> TraceTokens::request(uint32_t session, uint32_t node) const {
  if (session >= sessions_.size()) return {};
  const auto runs = sessions_[session].requests.find(node);
  if (runs == sessions_[session].requests.end()) return {};
  std::vector<uint32_t> out;
  for (const v1::SpanRun& run : runs->second) {
    if (!append(sessions_[session], run, &out)) return {};
  }
  return out;
}

}  // namespace kvtwin
