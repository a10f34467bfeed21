// ChatRenderer makes the token ids of messages of which only roles and lengths are known, as a chat server
// would send them. A message begins with the ids that its chat template puts before its content:
//
//   1. the end of the message before,
//   2. the role header, or the bracket that replaces it,
//   3. the bracket of reasoning or of a tool call.
//
// * A message keeps its length: these ids replace its first tokens. A message that is shorter than they are
//   has none of them, and continues the message before it. So does one that the template cannot mark: without
//   headers (Mistral), an answer at the start, or after a call of a tool that got no response.
// * Texts of the user in one turn are one message, and so are instructions, and the parts of an answer.
// * Content is kContentToken; of an image it is the template's image token.
// * Ids depend on nothing that follows, so equal prefixes of prompts have equal ids.

#ifndef KVTWIN_ENGINE_CHAT_CHAT_RENDERER_H_
#define KVTWIN_ENGINE_CHAT_CHAT_RENDERER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/chat/role_tagger.h"

namespace kvtwin {

// An ordinary token, which no template names. Engines draw an id for it (engine/common/token_ids.h).
constexpr uint32_t kContentToken = kNoToken - 1;

// What an image's tokens are. kContentToken: the template has no images.
uint32_t image_token(const ChatTemplate& chat);

struct MessageSpan {
  Semantic semantic{};
  Modal modal{};
  uint32_t turn = 0;
  uint32_t tokens = 0;
};

class ChatRenderer {
 public:
  // `chat` must outlive the renderer.
  explicit ChatRenderer(const ChatTemplate& chat) : chat_(&chat) {}

  // Appends the first `keep` ids of the next span. False: it continues the message before it, though its role
  // is another.
  bool append(const MessageSpan& span, uint32_t keep, std::vector<uint32_t>* out);

 private:
  struct Message {
    ChatRole role{};
    uint32_t turn = 0;
    const ChatTemplate::Bracket* bracket = nullptr;
  };
  Message message_of(const MessageSpan& span) const;
  bool continues(const Message& next) const;
  bool can_begin(const Message& next) const;
  std::vector<uint32_t> ids_before(const Message& next) const;

  const ChatTemplate* chat_;
  std::optional<Message> open_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_CHAT_CHAT_RENDERER_H_
