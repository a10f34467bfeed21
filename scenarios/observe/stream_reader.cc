#include "scenarios/observe/stream_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr size_t kStartBytes = 4'096;
constexpr size_t kLineBytesMax = size_t{16} << 20;
constexpr size_t kShownBytes = 200;

// The server's own words, if the body has them.
std::string message_of(const std::string& body) {
  const Result<CompactJson> parsed = parse_compact_json(body, {});
  if (parsed) {
    const json* const error = any_of(&parsed->tree, {"error"});
    for (const json* const text :
         {any_of(error, {"message"}), error, any_of(&parsed->tree, {"message", "detail"})}) {
      if (text != nullptr && text->is_string()) return text->get<std::string>().substr(0, kShownBytes);
    }
  }
  std::string shown = body.substr(0, kShownBytes);
  std::replace(shown.begin(), shown.end(), '\n', ' ');
  return shown;
}

// Whether a chunk's first choice carries a token: completions have text, chats a delta with content.
bool carries_token(const json& chunk) {
  const json* const choices = any_of(&chunk, {"choices"});
  if (choices == nullptr || !choices->is_array() || choices->empty()) return false;
  const json& choice = choices->front();
  const json* const delta = any_of(&choice, {"delta"});
  if (delta == nullptr) {
    const json* const text = any_of(&choice, {"text"});
    return text != nullptr && text->is_string() && *text != "";
  }
  for (const char* const name : {"content", "reasoning_content", "reasoning"}) {
    const json* const text = any_of(delta, {name});
    if (text != nullptr && text->is_string() && *text != "") return true;
  }
  return any_of(delta, {"tool_calls"}) != nullptr;
}

}  // namespace

void StreamReader::add(std::string_view bytes, int64_t now_ns, HttpReply* reply) {
  if (start_.size() < kStartBytes) start_.append(bytes.substr(0, kStartBytes - start_.size()));
  rest_.append(bytes);
  size_t begin = 0;
  for (size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1)
    line(std::string_view(rest_).substr(begin, end - begin), now_ns, reply);
  rest_.erase(0, begin);
  if (rest_.size() > kLineBytesMax) {
    reply->error = "a line of the stream is longer than 16 MiB";
    rest_.clear();
  }
}

void StreamReader::line(std::string_view text, int64_t now_ns, HttpReply* reply) {
  if (text.ends_with('\r')) text.remove_suffix(1);
  if (!text.starts_with("data:")) return;
  text.remove_prefix(5);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  if (text == "[DONE]") {
    done_ = true;
    return;
  }
  const Result<CompactJson> chunk = parse_compact_json(text, {});
  if (!chunk) {
    if (reply->error.empty()) reply->error = "a chunk of the stream is not JSON";
    return;
  }
  if (any_of(&chunk->tree, {"error"}) != nullptr && reply->error.empty())
    reply->error = "error in the stream: " + message_of(std::string(text));
  if (carries_token(chunk->tree)) {
    if (reply->chunks++ == 0) reply->first_token_ns = now_ns;
    reply->last_token_ns = now_ns;
  }
  const json* const usage = any_of(&chunk->tree, {"usage"});
  if (usage == nullptr) return;
  reply->prompt_tokens = count_of(any_of(usage, {"prompt_tokens"}));
  reply->output_tokens = count_of(any_of(usage, {"completion_tokens"}));
  if (const json* const details = any_of(usage, {"prompt_tokens_details"}); details != nullptr)
    reply->cached_tokens = count_of(any_of(details, {"cached_tokens"}));
}

void StreamReader::end(long status, HttpReply* reply) {
  if (status != 200) {
    reply->error = fmt::format("HTTP {}: {}", status, message_of(start_));
  } else if (reply->error.empty() && !done_) {
    reply->error = "the stream ended before [DONE]";
  } else if (reply->error.empty() && reply->chunks == 0) {
    reply->error = "the stream had no token";
  }
}

}  // namespace kvtwin
