// RoleTagger reads token ids once, left to right, and says of each token what it is
// (docs/design/methods/triaxialkv.md#tags).
//
// No model and no text: chat templates mark roles with special ids, and those are a small automaton.
//   * role header, brackets, end of message, and what stands behind a header or between two messages (a
//     newline) are delimiters;
//   * a system body is instruction throughout, whatever markers it quotes (tool schemas do);
//   * a user body is user, a tool body observation; a tool response inside a user message is observation
//     too, and such a message opens no turn;
//   * in an assistant body, what stands between think or tool-call markers is reasoning or tool call.
// Requests that a model writes without a marker (Llama's JSON requests) stay assistant text. Text before any
// marker is user text of turn 0. O(1) per token; append-only, except that the header of a user message learns
// its turn with the first token behind it.

#ifndef KVTWIN_ENGINE_METHODS_ROLE_TAGGER_H_
#define KVTWIN_ENGINE_METHODS_ROLE_TAGGER_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/tags.h"

namespace kvtwin {

constexpr uint32_t kNoToken = UINT32_MAX;

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool };

// What a family of models writes between messages, as token ids.
struct ChatTemplate {
  struct RoleName {
    uint32_t ids[2];  // the name in one or two tokens; the second may be kNoToken
    ChatRole role;
  };
  // What stands between `open` and `close`. Without a `close` it ends with the message.
  struct Bracket {
    uint32_t open, close;
    Semantic semantic;
    ChatRole in;      // only in a body of this role
    bool opens_body;  // stands for a role header: `in` is then the role that it starts
  };
  std::string_view name;
  uint32_t header_begin = kNoToken;  // kNoToken: brackets alone (Mistral)
  uint32_t header_end = kNoToken;    // ends the header
  uint32_t after_header = kNoToken;  // a newline there is a delimiter too
  std::span<const RoleName> roles;
  std::span<const Bracket> brackets;
  std::span<const uint32_t> message_ends;
  std::span<const uint32_t> delimiters;  // single ones: begin of text and the like
  uint32_t vision_begin = kNoToken, vision_end = kNoToken;
  std::span<const uint32_t> image_tokens;
};

// llama3, chatml (Qwen 2 to 3, with and without vision), mistral (v3 and later); nullptr: unknown.
const ChatTemplate* find_chat_template(std::string_view name);

class RoleTagger {
 public:
  // `chat` must outlive the tagger.
  explicit RoleTagger(const ChatTemplate& chat) : chat_(&chat) {}

  void append(std::span<const uint32_t> tokens);
  std::span<const TokenRole> roles() const { return roles_; }  // of all tokens so far
  uint32_t last_turn() const { return turn_; }

 private:
  enum class State : uint8_t { kBody, kHeader, kHeaderEnded, kBetween };

  void take(uint32_t token);
  void take_body(uint32_t token);
  void end_header();
  void begin_message(ChatRole role);
  void open_turn_if_due(uint32_t token);
  const ChatTemplate::Bracket* opened_by(uint32_t token) const;
  Semantic body_semantic() const;
  void push(Semantic semantic, bool image = false);

  const ChatTemplate* chat_;
  std::vector<TokenRole> roles_;
  State state_ = State::kBody;
  ChatRole role_ = ChatRole::kUser;
  const ChatTemplate::Bracket* bracket_ = nullptr;
  bool in_vision_ = false;
  bool turn_due_ = false;  // a user message began, and no token of its body was seen
  size_t message_begin_ = 0;
  uint32_t header_[2] = {kNoToken, kNoToken};
  uint32_t header_tokens_ = 0;
  uint32_t turn_ = 0;
};

// Equal neighbours as runs; what the driver hands to policies.
std::vector<RoleRun> runs_of(std::span<const TokenRole> roles);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_ROLE_TAGGER_H_
