#include "engine/chat/role_tagger.h"

#include <algorithm>

namespace kvtwin {
namespace {

// A longer header is treated as a body of an unknown role.
constexpr uint32_t kHeaderTokensMax = 8;

bool among(std::span<const uint32_t> ids, uint32_t token) {
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

}  // namespace

RoleTagger::RoleTagger(const ChatTemplate& chat) : chat_(&chat) {
  std::vector<uint32_t> ids = special_ids(chat);
  ids.insert(ids.end(), chat.image_tokens.begin(), chat.image_tokens.end());
  const auto [first, last] = std::minmax_element(ids.begin(), ids.end());
  special_first_ = *first;
  special_count_ = *last - *first + 1;
}

// Special ids are few and close together, and nearly all tokens are none of them.
void RoleTagger::append(std::span<const uint32_t> tokens) {
  for (size_t i = 0; i < tokens.size();) {
    const size_t plain = plain_tokens(tokens.subspan(i));
    if (plain == 0) {
      take(tokens[i++]);
      continue;
    }
    const Semantic semantic = state_ == State::kBetween ? Semantic::kDelim : body_semantic();
    const Modal modal = state_ == State::kBody && in_vision_ ? Modal::kImage : Modal::kText;
    roles_.insert(roles_.end(), plain, {turn_, modal, semantic});
    i += plain;
  }
}

// The number of tokens from the first on that change no state and have the role of the state.
size_t RoleTagger::plain_tokens(std::span<const uint32_t> tokens) const {
  if (turn_due_ || (state_ != State::kBody && state_ != State::kBetween)) return 0;
  size_t out = 0;
  while (out < tokens.size() && tokens[out] - special_first_ >= special_count_) ++out;
  return out;
}

void RoleTagger::push(Semantic semantic, bool image) {
  roles_.push_back({turn_, image ? Modal::kImage : Modal::kText, semantic});
}

Semantic RoleTagger::body_semantic() const {
  if (bracket_ != nullptr) return bracket_->semantic;
  constexpr Semantic kBodies[] = {Semantic::kInst, Semantic::kUser, Semantic::kAssistant, Semantic::kObs};
  return kBodies[static_cast<size_t>(role_)];
}

const ChatTemplate::Bracket* RoleTagger::opened_by(uint32_t token) const {
  for (const ChatTemplate::Bracket& bracket : chat_->brackets) {
    if (bracket.open == token && (bracket.opens_body || bracket.in == role_)) return &bracket;
  }
  return nullptr;
}

void RoleTagger::begin_message(ChatRole role) {
  role_ = role;
  bracket_ = nullptr;
  in_vision_ = false;
  turn_due_ = role == ChatRole::kUser;
}

// A user message opens a turn, unless it only carries a tool's response.
void RoleTagger::open_turn_if_due(uint32_t token) {
  if (!turn_due_) return;
  turn_due_ = false;
  const ChatTemplate::Bracket* const bracket = opened_by(token);
  if (bracket != nullptr && bracket->semantic == Semantic::kObs) return;
  ++turn_;
  for (size_t i = message_begin_; i < roles_.size(); ++i) roles_[i].turn = turn_;
}

void RoleTagger::end_header() {
  ChatRole role = ChatRole::kUser;
  for (const ChatTemplate::RoleName& known : chat_->roles) {
    const uint32_t length = known.ids[1] == kNoToken ? 1 : 2;
    if (header_tokens_ == length && std::equal(known.ids, known.ids + length, header_)) role = known.role;
  }
  begin_message(role);
  state_ = State::kHeaderEnded;
}

void RoleTagger::take(uint32_t token) {
  if (token == chat_->header_begin && token != kNoToken) {
    state_ = State::kHeader;
    header_tokens_ = 0;
    message_begin_ = roles_.size();
    bracket_ = nullptr;
    return push(Semantic::kDelim);
  }
  if (state_ == State::kHeader) {
    push(Semantic::kDelim);
    if (token == chat_->header_end) return end_header();
    if (header_tokens_ < 2) header_[header_tokens_] = token;
    if (++header_tokens_ == kHeaderTokensMax) end_header();
    return;
  }
  if (state_ == State::kHeaderEnded) {
    state_ = State::kBody;
    if (token == chat_->after_header) return push(Semantic::kDelim);
  }
  take_body(token);
}

void RoleTagger::take_body(uint32_t token) {
  if (among(chat_->delimiters, token)) return push(Semantic::kDelim);
  const ChatTemplate::Bracket* const bracket = opened_by(token);
  if (bracket != nullptr && bracket->opens_body) {
    message_begin_ = roles_.size();
    begin_message(bracket->in);
    state_ = State::kBody;
    open_turn_if_due(kNoToken);
    bracket_ = bracket;
    return push(Semantic::kDelim);
  }
  if (state_ == State::kBetween) return push(Semantic::kDelim);
  open_turn_if_due(token);
  if (among(chat_->message_ends, token)) {
    bracket_ = nullptr;
    in_vision_ = false;
    state_ = State::kBetween;
    return push(Semantic::kDelim);
  }
  if (bracket_ != nullptr && token == bracket_->close) {
    // The text after a bracket that replaces a header is the model's answer.
    if (bracket_->opens_body) role_ = ChatRole::kAssistant;
    bracket_ = nullptr;
    return push(Semantic::kDelim);
  }
  if (bracket_ == nullptr && bracket != nullptr) {
    bracket_ = bracket;
    return push(Semantic::kDelim);
  }
  if (token == chat_->vision_begin) in_vision_ = true;
  push(body_semantic(), in_vision_ || among(chat_->image_tokens, token));
  if (token == chat_->vision_end) in_vision_ = false;
}

std::vector<RoleRun> runs_of(std::span<const TokenRole> roles) {
  std::vector<RoleRun> runs;
  for (const TokenRole& role : roles) {
    if (runs.empty() || !(runs.back().role == role)) runs.push_back({role, 0});
    ++runs.back().count;
  }
  return runs;
}

}  // namespace kvtwin
