// RoleTagger reads token ids once, left to right, and assigns each token its role
// (docs/design/methods/triaxialkv.md#tags).
//
// It uses neither model nor text: chat templates mark roles by special ids, which a small automaton reads.
//   * The role header, brackets, the end of a message, and tokens that follow a header or separate messages,
//     such as a newline, are delimiters.
//   * A system body is instruction throughout, whatever markers it quotes (tool schemas do).
//   * A user body is user, a tool body observation. A tool response inside a user message is observation too,
//     and such a message opens no turn.
//   * In an assistant body, tokens between think or tool-call markers are reasoning or tool call.
// Tool calls that a model writes without a marker (Llama's JSON calls) stay assistant text. Text before any
// marker is user text of turn 0. O(1) per token. Roles are append-only, except that the header of a user
// message gets its turn with the first token after it.

#ifndef KVTWIN_ENGINE_CHAT_ROLE_TAGGER_H_
#define KVTWIN_ENGINE_CHAT_ROLE_TAGGER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/tags.h"

namespace kvtwin {

constexpr uint32_t kNoToken = UINT32_MAX;

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool };

// The token ids by which a model family delimits messages.
struct ChatTemplate {
  struct RoleName {
    uint32_t ids[2];  // the name in one or two tokens; the second may be kNoToken
    ChatRole role;
  };
  // Gives tokens between `open` and `close` a role. Without a `close` it ends with the message.
  struct Bracket {
    uint32_t open, close;
    Semantic semantic;
    ChatRole in;      // recognised only in a body of this role
    bool opens_body;  // replaces a role header and starts a body of role `in`
  };
  std::string_view name;
  uint32_t header_begin = kNoToken;  // kNoToken: brackets alone (Mistral)
  uint32_t header_end = kNoToken;    // ends the header
  uint32_t after_header = kNoToken;  // a newline after a header: also a delimiter
  std::span<const RoleName> roles;
  std::span<const Bracket> brackets;
  std::span<const uint32_t> message_ends;  // the first ends every message
  std::span<const uint32_t> delimiters;    // single ones: begin of text and similar
  uint32_t vision_begin = kNoToken, vision_end = kNoToken;
  std::span<const uint32_t> image_tokens;  // empty: it has no images
};

// llama3, chatml (Qwen 2 to 3, with and without vision), mistral (v3 and later), tasks; nullptr: unknown.
const ChatTemplate* find_chat_template(std::string_view name);
std::vector<std::string> chat_template_names();
// True if a message begins with `token`. A conversation in this template has such a token.
bool begins_message(const ChatTemplate& chat, uint32_t token);
// The ids that act as delimiters wherever they occur, without those of images.
std::vector<uint32_t> special_ids(const ChatTemplate& chat);

class RoleTagger {
 public:
  // `chat` must outlive the tagger.
  explicit RoleTagger(const ChatTemplate& chat);

  void append(std::span<const uint32_t> tokens);
  std::span<const TokenRole> roles() const { return roles_; }  // of all tokens so far
  uint32_t last_turn() const { return turn_; }

 private:
  enum class State : uint8_t { kBody, kHeader, kHeaderEnded, kBetween };

  size_t plain_tokens(std::span<const uint32_t> tokens) const;
  void take(uint32_t token);
  void take_body(uint32_t token);
  void end_header();
  void begin_message(ChatRole role);
  void open_turn_if_due(uint32_t token);
  const ChatTemplate::Bracket* opened_by(uint32_t token) const;
  Semantic body_semantic() const;
  void push(Semantic semantic, bool image = false);

  const ChatTemplate* chat_;
  uint32_t special_first_ = 0, special_count_ = 0;  // all special ids, and those of images
  std::vector<TokenRole> roles_;
  State state_ = State::kBody;
  ChatRole role_ = ChatRole::kUser;
  const ChatTemplate::Bracket* bracket_ = nullptr;
  bool in_vision_ = false;
  bool turn_due_ = false;  // a user message has begun; no token of its body was read
  size_t message_begin_ = 0;
  uint32_t header_[2] = {kNoToken, kNoToken};
  uint32_t header_tokens_ = 0;
  uint32_t turn_ = 0;
};

// Joins equal neighbours into runs, as policies receive them.
std::vector<RoleRun> runs_of(std::span<const TokenRole> roles);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_CHAT_ROLE_TAGGER_H_
