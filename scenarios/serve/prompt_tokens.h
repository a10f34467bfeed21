// Tokens of prompts and of generated text, without a tokenizer.
//
// Token ids of a request are used as they are. Text counts one token per 4 bytes; the last token of a piece
// of text may be shorter. A message of a chat is one token for its role, its text, and one token for its end;
// a prompt ends with the role of the answer. Generated tokens are 4 bytes each, so that a conversation that
// sends them back repeats the same tokens: the prefix cache then finds them.
//
// Identity (engine/base/identity.h): unit i is identified by a hash of the tokens of units 0..i, so that two
// prompts share exactly their common prefix, in whole units.

#ifndef KVTWIN_SCENARIOS_SERVE_PROMPT_TOKENS_H_
#define KVTWIN_SCENARIOS_SERVE_PROMPT_TOKENS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/identity.h"
#include "engine/base/prompt_spans.h"
#include "engine/base/tags.h"

namespace kvtwin::serve {

constexpr size_t kBytesPerToken = 4;

class PromptTokens {
 public:
  void add_id(uint32_t id);
  void add_text(std::string_view text);
  // A token of the chat template. `opens_turn`: the message is the user's.
  void begin_message(Semantic semantic, bool opens_turn);
  void end_message();

  uint32_t count() const { return static_cast<uint32_t>(tokens_.size()); }
  const std::vector<uint64_t>& tokens() const { return tokens_; }
  const std::vector<RoleRun>& roles() const { return roles_; }
  // The end of the first user message; 0: there are no messages of a user.
  uint32_t first_message_end() const;
  // What a prompt of messages asks; not known() of token ids and plain text.
  PromptSpans spans() const;
  uint32_t turn() const { return turn_; }
  // Identifies the whole prompt; generated text is drawn from it, so equal prompts get equal answers.
  uint64_t hash() const;

 private:
  void add(uint64_t token, Semantic semantic);

  std::vector<uint64_t> tokens_;  // kind << 32 | content
  std::vector<RoleRun> roles_;
  Semantic semantic_ = Semantic::kUser;
  uint32_t turn_ = 0;
  bool has_messages_ = false;
};

// Token `index` of the text that is generated for `seed`: kBytesPerToken bytes.
std::string_view generated_token(uint64_t seed, uint32_t index);

// The hashes of the units of `prompt` followed by `output_tokens` generated ones; the last partial unit is
// omitted. REQUIRES: unit_tokens > 0.
std::vector<UnitRun> identity_of(const PromptTokens& prompt, uint64_t seed, uint32_t output_tokens,
                                 uint32_t unit_tokens);

// The id that KV events report for a token: the id of the request, or the bytes of its text.
inline uint32_t event_id(uint64_t token) { return static_cast<uint32_t>(token); }
uint64_t generated_token_value(uint64_t seed, uint32_t index);

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_PROMPT_TOKENS_H_
