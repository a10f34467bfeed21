#include "scenarios/serve/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvtwin::serve {
namespace {

using nlohmann::json;
using Checked = tl::expected<void, ApiError>;

tl::unexpected<ApiError> wrong(const std::string& param, const std::string& message) {
  return tl::unexpected<ApiError>(ApiError{.message = message, .param = param});
}

const json* field(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Checked read_bool(const json& object, const char* name, bool* out) {
  const json* const value = field(object, name);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return wrong(name, fmt::format("'{}' must be true or false", name));
  *out = value->get<bool>();
  return {};
}

Checked read_text(const json& object, const char* name, std::string* out) {
  const json* const value = field(object, name);
  if (value == nullptr) return {};
  if (!value->is_string()) return wrong(name, fmt::format("'{}' must be a string", name));
  *out = value->get<std::string>();
  return {};
}

Checked read_count(const json& object, const char* name, uint32_t low, std::optional<uint32_t>* out) {
  const json* const value = field(object, name);
  if (value == nullptr) return {};
  if (!value->is_number_integer() || value->get<int64_t>() < low || value->get<int64_t>() > UINT32_MAX)
    return wrong(name, fmt::format("'{}' must be a whole number from {}, and is {}", name, low,
                                   value->dump().substr(0, 40)));
  *out = static_cast<uint32_t>(value->get<int64_t>());
  return {};
}

Checked only_one(const json& object, const char* name) {
  std::optional<uint32_t> count;
  if (Checked ok = read_count(object, name, 1, &count); !ok) return ok;
  if (count.value_or(1) == 1) return {};
  return wrong(name, fmt::format("'{}' is {}: this server generates one answer", name, *count));
}

Checked add_ids(const json& ids, PromptTokens* out) {
  for (const json& id : ids) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > UINT32_MAX)
      return wrong("prompt", fmt::format("'prompt' has a token id {}", id.dump().substr(0, 40)));
    out->add_id(static_cast<uint32_t>(id.get<int64_t>()));
  }
  return {};
}

// A string, a list of token ids, or a list of one of these.
Checked read_prompt(const json& body, PromptTokens* out) {
  const json* prompt = field(body, "prompt");
  if (prompt == nullptr) return wrong("prompt", "'prompt' is missing");
  if (prompt->is_array() && !prompt->empty() && (prompt->front().is_array() || prompt->front().is_string())) {
    if (prompt->size() > 1)
      return wrong("prompt",
                   fmt::format("'prompt' has {} prompts: send each in a request of its own", prompt->size()));
    prompt = &prompt->front();
  }
  if (prompt->is_string()) return out->add_text(prompt->get_ref<const std::string&>()), Checked{};
  if (prompt->is_array()) return add_ids(*prompt, out);
  return wrong("prompt", "'prompt' must be a string or a list of token ids");
}

struct RoleName {
  const char* name;
  Semantic semantic;
};
constexpr RoleName kRoles[] = {{"system", Semantic::kInst}, {"developer", Semantic::kInst},
                               {"user", Semantic::kUser},   {"assistant", Semantic::kAssistant},
                               {"tool", Semantic::kObs},    {"function", Semantic::kObs}};

const RoleName* role_named(const std::string& name) {
  for (const RoleName& role : kRoles) {
    if (role.name == name) return &role;
  }
  return nullptr;
}

// An answer that called tools may have no text; all other messages have.
bool may_lack_content(const json& message, Semantic role) {
  if (role != Semantic::kAssistant) return false;
  for (const char* const instead : {"tool_calls", "function_call", "refusal"}) {
    if (field(message, instead) != nullptr) return true;
  }
  return false;
}

Checked add_content(const json& message, const std::string& where, Semantic role, PromptTokens* out) {
  const json* const content = field(message, "content");
  if (content == nullptr && may_lack_content(message, role)) return {};
  if (content == nullptr) return wrong(where, fmt::format("'{}.content' is missing", where));
  if (content->is_string()) return out->add_text(content->get_ref<const std::string&>()), Checked{};
  if (!content->is_array())
    return wrong(where, fmt::format("'{}.content' must be a string or a list", where));
  for (const json& part : *content) {
    std::string type, text;
    if (!part.is_object())
      return wrong(where, fmt::format("'{}.content' has a part that is no object", where));
    if (Checked ok = read_text(part, "type", &type); !ok) return ok;
    if (type != "text")
      return wrong(where, fmt::format("'{}.content' has a part of type '{}': this server reads text", where,
                                      type.substr(0, 40)));
    if (Checked ok = read_text(part, "text", &text); !ok) return ok;
    out->add_text(text);
  }
  return {};
}

Checked add_message(const json& message, const std::string& where, PromptTokens* out) {
  std::string name;
  if (!message.is_object()) return wrong(where, fmt::format("'{}' must be an object", where));
  if (Checked ok = read_text(message, "role", &name); !ok) return ok;
  const RoleName* const role = role_named(name);
  if (role == nullptr)
    return wrong(where, fmt::format("'{}.role' is '{}': system, developer, user, assistant or tool would be "
                                    "right",
                                    where, name.substr(0, 40)));
  out->begin_message(role->semantic, role->semantic == Semantic::kUser);
  if (Checked ok = add_content(message, where, role->semantic, out); !ok) return ok;
  if (const json* const calls = field(message, "tool_calls"); calls != nullptr && !calls->empty())
    out->add_text(calls->dump(-1, ' ', false, json::error_handler_t::replace));
  out->end_message();
  return {};
}

Checked read_messages(const json& body, PromptTokens* out) {
  const json* const messages = field(body, "messages");
  if (messages == nullptr) return wrong("messages", "'messages' is missing");
  if (!messages->is_array() || messages->empty())
    return wrong("messages", "'messages' must be a list of at least one message");
  // Tool definitions are part of the prompt, before everything else.
  if (const json* const tools = field(body, "tools"); tools != nullptr) {
    if (!tools->is_array()) return wrong("tools", "'tools' must be a list");
    if (!tools->empty()) {
      out->begin_message(Semantic::kInst, false);
      out->add_text(tools->dump(-1, ' ', false, json::error_handler_t::replace));
      out->end_message();
    }
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    if (Checked ok = add_message((*messages)[i], fmt::format("messages[{}]", i), out); !ok) return ok;
  }
  out->begin_message(Semantic::kAssistant, false);
  return {};
}

Checked read_stream(const json& body, ApiRequest* out) {
  if (Checked ok = read_bool(body, "stream", &out->stream); !ok) return ok;
  const json* const options = field(body, "stream_options");
  if (options == nullptr) return {};
  if (!options->is_object()) return wrong("stream_options", "'stream_options' must be an object");
  if (!out->stream) return wrong("stream_options", "'stream_options' needs 'stream': true");
  return read_bool(*options, "include_usage", &out->include_usage);
}

Checked read_limits(const json& body, ApiRequest* out) {
  if (Checked ok = read_count(body, "max_tokens", 1, &out->max_tokens); !ok) return ok;
  if (out->chat) {
    if (Checked ok = read_count(body, "max_completion_tokens", 1, &out->max_tokens); !ok) return ok;
  }
  std::optional<uint32_t> least;
  if (Checked ok = read_count(body, "min_tokens", 0, &least); !ok) return ok;
  out->min_tokens = least.value_or(0);
  if (out->max_tokens && out->min_tokens > *out->max_tokens)
    return wrong("min_tokens", fmt::format("'min_tokens' is {}, more than 'max_tokens', {}", out->min_tokens,
                                           *out->max_tokens));
  for (const char* const name : {"n", "best_of"}) {
    if (Checked ok = only_one(body, name); !ok) return ok;
  }
  bool echo = false;
  if (Checked ok = read_bool(body, "echo", &echo); !ok) return ok;
  if (echo) return wrong("echo", "'echo' is true: this server does not repeat prompts");
  return read_bool(body, "ignore_eos", &out->ignore_eos);
}

// Where `body` stops being JSON.
tl::unexpected<ApiError> not_json(std::string_view body) {
  size_t at = 1;  // counted from 1
  try {
    [[maybe_unused]] const json whole = json::parse(body);
  } catch (const json::parse_error& error) {
    at = std::max(error.byte, at);
  }
  const std::string_view before = body.substr(0, std::min(at - 1, body.size()));
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return wrong("", fmt::format("the body is not valid JSON: line {}, column {}{}",
                               std::count(before.begin(), before.end(), '\n') + 1,
                               before.size() - line_begin + 1, at > body.size() ? ", where it ends" : ""));
}

}  // namespace

tl::expected<ApiRequest, ApiError> parse_api_request(bool chat, std::string_view body) {
  const json parsed = json::parse(body, nullptr, false);
  if (parsed.is_discarded()) return not_json(body);
  if (!parsed.is_object()) return wrong("", "the body must be a JSON object");
  ApiRequest out;
  out.chat = chat;
  if (Checked ok = read_text(parsed, "model", &out.model); !ok) return tl::unexpected(ok.error());
  if (Checked ok = read_text(parsed, "user", &out.user); !ok) return tl::unexpected(ok.error());
  if (Checked ok = read_stream(parsed, &out); !ok) return tl::unexpected(ok.error());
  if (Checked ok = read_limits(parsed, &out); !ok) return tl::unexpected(ok.error());
  const Checked ok = chat ? read_messages(parsed, &out.prompt) : read_prompt(parsed, &out.prompt);
  if (!ok) return tl::unexpected(ok.error());
  if (out.prompt.count() == 0) return wrong("prompt", "'prompt' is empty");
  return out;
}

}  // namespace kvtwin::serve
