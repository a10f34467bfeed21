#include "scenarios/app/chat_prompts.h"

#include <fmt/format.h>

#include <algorithm>

#include "traces/replay/replay_roles.h"

namespace kvtwin {

Result<void> ChatPrompts::check_image(const std::string& where) const {
  const uint32_t token = image_token(chat_);
  if (token < vocab_) return {};
  if (token == kContentToken)
    return make_error(where,
                      fmt::format("has an image, which chat template {} has no token for", chat_.name));
  return make_error(where,
                    fmt::format("has an image, which is token {} in chat template {}", token, chat_.name),
                    fmt::format("a model for images; this one's vocabulary has {} ids", vocab_));
}

Result<std::vector<ChatPrompts::Span>> ChatPrompts::keep(
    const google::protobuf::RepeatedPtrField<v1::Span>& spans, const std::string& where) {
  std::vector<Span> out;
  for (const v1::Span& span : spans) {
    const std::optional<Semantic> semantic = semantic_of(span.role());
    const Modal modal = modal_of(span.modality());
    if (modal == Modal::kImage && span.token_ids_size() == 0) {
      if (auto ok = check_image(where); !ok) return tl::unexpected<Error>(ok.error());
    }
    out.push_back({{semantic.value_or(Semantic::kUser), modal, span.turn(), span.tokens()}, !semantic});
    message_seen_ = message_seen_ || std::any_of(span.token_ids().begin(), span.token_ids().end(),
                                                 [&](uint32_t id) { return begins_message(chat_, id); });
  }
  return out;
}

Result<void> ChatPrompts::shared_spans(const v1::SharedSpanTable& table) {
  Result<std::vector<Span>> kept = keep(table.spans(), fmt::format("shared span table {}", table.table()));
  if (!kept) return tl::unexpected<Error>(kept.error());
  tables_[table.table()] = std::move(*kept);
  return {};
}

Result<void> ChatPrompts::session(const v1::Session& session) {
  Result<std::vector<Span>> kept = keep(session.spans(), fmt::format("session \"{}\"", session.id()));
  if (!kept) return tl::unexpected<Error>(kept.error());
  const auto index = static_cast<uint32_t>(sessions_.size());
  Session& own = sessions_.emplace_back();
  own.spans = std::move(*kept);
  for (int i = 0; i < session.nodes_size(); ++i) {
    if (!session.nodes(i).has_llm()) continue;
    const v1::LlmRequest& in = session.nodes(i).llm();
    const auto node = static_cast<uint32_t>(i);
    Request& request = own.requests[node];
    request.prompt.assign(in.prompt().begin(), in.prompt().end());
    request.output.assign(in.output().begin(), in.output().end());
    request.prompt_tokens = in.prompt_tokens();
    request.turn = in.turn();
    ChatRenderer renderer(chat_);
    const Rendered rendered = render_prompt(own, request, &renderer);
    request.prompt_tokens = static_cast<uint32_t>(rendered.ids.size());
    if (!own_.request(index, node).empty()) continue;
    rendered_tokens_ += rendered.ids.size();
    unknown_tokens_ += rendered.unknown_tokens, unmarked_tokens_ += rendered.unmarked_tokens;
  }
  return {};
}

void ChatPrompts::render(const Session& session, const std::vector<v1::SpanRun>& runs, ChatRenderer* renderer,
                         Rendered* out) const {
  for (const v1::SpanRun& run : runs) {
    const auto table = tables_.find(run.table());
    if (run.table() != 0 && table == tables_.end()) continue;
    const std::vector<Span>& spans = run.table() == 0 ? session.spans : table->second;
    const uint64_t end = std::min<uint64_t>(uint64_t{run.first()} + run.count(), spans.size());
    for (uint64_t i = run.first(); i < end; ++i) {
      const bool cut = i + 1 == uint64_t{run.first()} + run.count() && run.keep_tokens() != 0;
      const MessageSpan& message = spans[i].message;
      const uint32_t tokens = cut ? std::min(run.keep_tokens(), message.tokens) : message.tokens;
      if (spans[i].unknown) out->unknown_tokens += tokens;
      if (!renderer->append(message, tokens, &out->ids)) out->unmarked_tokens += tokens;
    }
  }
}

ChatPrompts::Rendered ChatPrompts::render_prompt(const Session& session, const Request& request,
                                                 ChatRenderer* renderer) const {
  Rendered out;
  render(session, request.prompt, renderer, &out);
  // 0 is absent: the prompt is its spans (ReplayBuilder).
  if (request.prompt_tokens == 0 || request.prompt_tokens == out.ids.size()) return out;
  if (request.prompt_tokens > out.ids.size()) {
    const auto rest = static_cast<uint32_t>(request.prompt_tokens - out.ids.size());
    renderer->append({Semantic::kUser, Modal::kText, request.turn, rest}, rest, &out.ids);
    out.unknown_tokens += rest;
  }
  out.ids.resize(request.prompt_tokens);
  return out;
}

std::vector<uint32_t> ChatPrompts::request(uint32_t session, uint32_t node) const {
  std::vector<uint32_t> own = own_.request(session, node);
  if (!own.empty()) return own;
  const Session& found = sessions_.at(session);
  const Request& request = found.requests.at(node);
  ChatRenderer renderer(chat_);
  Rendered out = render_prompt(found, request, &renderer);
  render(found, request.output, &renderer, &out);
  return std::move(out.ids);
}

std::vector<uint32_t> ChatPrompts::prompt(uint32_t session, uint32_t node) const {
  std::vector<uint32_t> out = request(session, node);
  out.resize(std::min<size_t>(out.size(), sessions_.at(session).requests.at(node).prompt_tokens));
  return out;
}

std::optional<std::string> ChatPrompts::misfit() const {
  if (own_.any() && !message_seen_)
    return fmt::format("no message begins in the trace's token ids by chat template {}", chat_.name);
  if (rendered_tokens_ > 0 && unknown_tokens_ == rendered_tokens_)
    return fmt::format(
        "the trace has neither token ids of the model's vocabulary nor roles, which chat template {} needs",
        chat_.name);
  return std::nullopt;
}

}  // namespace kvtwin
