#include "engine/chat/chat_renderer.h"

#include <algorithm>

namespace kvtwin {
namespace {

ChatRole role_of(Semantic semantic) {
  if (semantic == Semantic::kInst) return ChatRole::kSystem;
  if (semantic == Semantic::kUser) return ChatRole::kUser;
  return semantic == Semantic::kObs ? ChatRole::kTool : ChatRole::kAssistant;
}

void push_name(const ChatTemplate& chat, ChatRole role, std::vector<uint32_t>* out) {
  for (const ChatTemplate::RoleName& name : chat.roles) {
    if (name.role != role) continue;
    for (const uint32_t id : name.ids)
      if (id != kNoToken) out->push_back(id);
    return;
  }
}

}  // namespace

uint32_t image_token(const ChatTemplate& chat) {
  return chat.image_tokens.empty() ? kContentToken : chat.image_tokens.front();
}

// A tool's response is bracketed inside a message of the user, where the template has a bracket for it.
ChatRenderer::Message ChatRenderer::message_of(const MessageSpan& span) const {
  Message out{role_of(span.semantic), span.turn, nullptr};
  for (const ChatTemplate::Bracket& bracket : chat_->brackets) {
    if (bracket.semantic != span.semantic) continue;
    out.bracket = &bracket;
    break;
  }
  return out;
}

// A bracket without an end ends with its message. Every response of a tool is a message.
bool ChatRenderer::continues(const Message& next) const {
  if (!open_ || open_->role != next.role || next.role == ChatRole::kTool) return false;
  if (next.role == ChatRole::kUser) return open_->turn == next.turn;
  return open_->bracket == next.bracket || open_->bracket == nullptr || open_->bracket->close != kNoToken;
}

bool ChatRenderer::can_begin(const Message& next) const {
  if (chat_->header_begin != kNoToken || (next.bracket != nullptr && next.bracket->opens_body)) return true;
  if (!open_ || continues(next)) return open_.has_value();
  return open_->role != ChatRole::kAssistant && open_->bracket != nullptr &&
         open_->bracket->close != kNoToken;
}

std::vector<uint32_t> ChatRenderer::ids_before(const Message& next) const {
  std::vector<uint32_t> out;
  const bool same = continues(next), headers = chat_->header_begin != kNoToken;
  const ChatTemplate::Bracket* const before = open_ ? open_->bracket : nullptr;
  if (same && before == next.bracket) return out;
  if (before != nullptr && before->close != kNoToken) out.push_back(before->close);
  if (!same) {
    // A bracket that replaces a header ends its message itself.
    if (open_ && (headers || open_->role == ChatRole::kAssistant)) out.push_back(chat_->message_ends.front());
    if (headers) {
      out.push_back(chat_->header_begin);
      push_name(*chat_, next.bracket != nullptr ? next.bracket->in : next.role, &out);
      out.push_back(chat_->header_end);
      if (chat_->after_header != kNoToken) out.push_back(chat_->after_header);
    }
  }
  if (next.bracket != nullptr) out.push_back(next.bracket->open);
  return out;
}

bool ChatRenderer::append(const MessageSpan& span, uint32_t keep, std::vector<uint32_t>* out) {
  keep = std::min(keep, span.tokens);
  if (span.tokens == 0) return true;
  if (span.semantic == Semantic::kDelim) {
    out->insert(out->end(), keep, chat_->delimiters.front());
    return true;
  }
  const Message next = message_of(span);
  std::vector<uint32_t> ids = ids_before(next);
  const bool marked = can_begin(next) && ids.size() <= span.tokens;
  if (!marked) ids.clear();
  if (marked) open_ = next;
  if (ids.size() > keep) open_.reset();  // cut before the message begins
  ids.resize(std::min<size_t>(ids.size(), keep));
  out->insert(out->end(), ids.begin(), ids.end());
  const uint32_t content = span.modal == Modal::kImage ? image_token(*chat_) : kContentToken;
  out->insert(out->end(), keep - ids.size(), content);
  return marked;
}

}  // namespace kvtwin
