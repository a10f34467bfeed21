// Token ids of the published tokenizers: Llama 3 (a tiktoken base and 256 reserved ids after it; R1
// distillations use two of them for think), Qwen 2 to 3 and Qwen-VL, Mistral v3 and later; and those of the
// tasks with right answers, whose sessions have ids of their own (traces/tasks/task_tokens.h).

#include <algorithm>

#include "engine/chat/role_tagger.h"

namespace kvtwin {
namespace {

using Bracket = ChatTemplate::Bracket;
using RoleName = ChatTemplate::RoleName;

constexpr RoleName kLlamaRoles[] = {{{9125, kNoToken}, ChatRole::kSystem},
                                    {{882, kNoToken}, ChatRole::kUser},
                                    {{78191, kNoToken}, ChatRole::kAssistant},
                                    {{23799, 4690}, ChatRole::kTool},  // ipython
                                    {{14506, kNoToken}, ChatRole::kTool}};
constexpr Bracket kLlamaBrackets[] = {
    {128010, kNoToken, Semantic::kToolCall, ChatRole::kAssistant, false},  // <|python_tag|>
    {128013, 128014, Semantic::kReasoning, ChatRole::kAssistant, false}};  // <think> of R1 distillations
constexpr uint32_t kLlamaEnds[] = {128009, 128008};                        // eot, eom
constexpr uint32_t kLlamaDelimiters[] = {128000, 128001};                  // begin, end of text
constexpr uint32_t kLlamaImages[] = {128256};

constexpr RoleName kQwenRoles[] = {{{8948, kNoToken}, ChatRole::kSystem},
                                   {{872, kNoToken}, ChatRole::kUser},
                                   {{77091, kNoToken}, ChatRole::kAssistant},
                                   {{14172, kNoToken}, ChatRole::kTool}};
constexpr Bracket kQwenBrackets[] = {
    {151657, 151658, Semantic::kToolCall, ChatRole::kAssistant, false},
    {151665, 151666, Semantic::kObs, ChatRole::kUser, false},  // <tool_response> in a user message
    {151667, 151668, Semantic::kReasoning, ChatRole::kAssistant, false}};
constexpr uint32_t kQwenEnds[] = {151645};
constexpr uint32_t kQwenDelimiters[] = {151643};
constexpr uint32_t kQwenImages[] = {151655, 151656, 151654};  // image, video and vision pads

constexpr Bracket kMistralBrackets[] = {
    {3, 4, Semantic::kUser, ChatRole::kUser, true},                   // [INST]
    {17, 18, Semantic::kInst, ChatRole::kSystem, true},               // [SYSTEM_PROMPT]
    {5, 6, Semantic::kInst, ChatRole::kSystem, true},                 // [AVAILABLE_TOOLS]
    {7, 8, Semantic::kObs, ChatRole::kTool, true},                    // [TOOL_RESULTS]
    {9, kNoToken, Semantic::kToolCall, ChatRole::kAssistant, false},  // [TOOL_REQUESTS], to the end
    {34, 35, Semantic::kReasoning, ChatRole::kAssistant, false}};     // [THINK]
constexpr uint32_t kMistralEnds[] = {2};
constexpr uint32_t kMistralDelimiters[] = {1};
constexpr uint32_t kMistralImages[] = {10, 12, 13};  // image, its row breaks and its end

constexpr Bracket kTaskBrackets[] = {{2, kNoToken, Semantic::kInst, ChatRole::kSystem, true},
                                     {3, kNoToken, Semantic::kUser, ChatRole::kUser, true},
                                     {4, kNoToken, Semantic::kAssistant, ChatRole::kAssistant, true},
                                     {5, kNoToken, Semantic::kToolCall, ChatRole::kAssistant, true},
                                     {6, kNoToken, Semantic::kObs, ChatRole::kTool, true}};
constexpr uint32_t kTaskEnds[] = {7};
constexpr uint32_t kTaskDelimiters[] = {0, 1};  // padding, begin

constexpr ChatTemplate kTemplates[] = {
    {"llama3", 128006, 128007, 271, kLlamaRoles, kLlamaBrackets, kLlamaEnds, kLlamaDelimiters, kNoToken,
     kNoToken, kLlamaImages},
    // ChatML ends a header with its newline.
    {"chatml", 151644, 198, kNoToken, kQwenRoles, kQwenBrackets, kQwenEnds, kQwenDelimiters, 151652, 151653,
     kQwenImages},
    {"mistral",
     kNoToken,
     kNoToken,
     kNoToken,
     {},
     kMistralBrackets,
     kMistralEnds,
     kMistralDelimiters,
     kNoToken,
     kNoToken,
     kMistralImages},
    {"tasks",
     kNoToken,
     kNoToken,
     kNoToken,
     {},
     kTaskBrackets,
     kTaskEnds,
     kTaskDelimiters,
     kNoToken,
     kNoToken,
     {}},
};

}  // namespace

const ChatTemplate* find_chat_template(std::string_view name) {
  for (const ChatTemplate& chat : kTemplates) {
    if (chat.name == name) return &chat;
  }
  return nullptr;
}

std::vector<std::string> chat_template_names() {
  std::vector<std::string> out;
  for (const ChatTemplate& chat : kTemplates) out.emplace_back(chat.name);
  return out;
}

bool begins_message(const ChatTemplate& chat, uint32_t token) {
  if (token == chat.header_begin) return token != kNoToken;
  return std::any_of(chat.brackets.begin(), chat.brackets.end(), [&](const ChatTemplate::Bracket& bracket) {
    return bracket.opens_body && bracket.open == token;
  });
}

std::vector<uint32_t> special_ids(const ChatTemplate& chat) {
  std::vector<uint32_t> out = {chat.header_begin, chat.vision_begin, chat.vision_end};
  for (const ChatTemplate::Bracket& bracket : chat.brackets)
    out.insert(out.end(), {bracket.open, bracket.close});
  out.insert(out.end(), chat.message_ends.begin(), chat.message_ends.end());
  out.insert(out.end(), chat.delimiters.begin(), chat.delimiters.end());
  std::erase(out, kNoToken);
  return out;
}

}  // namespace kvtwin
