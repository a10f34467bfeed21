// The text of replies: HTTP responses, the events of a stream, and OpenAI's error object.

#ifndef KVTWIN_SCENARIOS_SERVE_API_REPLY_H_
#define KVTWIN_SCENARIOS_SERVE_API_REPLY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scenarios/serve/api_request.h"

namespace kvtwin::serve {

// A whole response. `close`: the connection ends with it.
std::string http_response(unsigned status, std::string_view content_type, std::string_view body, bool close,
                          std::string_view more_headers = {});
std::string error_response(const ApiError& error, bool close);

struct ToolCallReply {
  std::string name, arguments;  // `arguments` is JSON in a string, as in OpenAI's API
};

struct ReplyFacts {
  bool chat = false, include_usage = false;
  uint32_t id = 0;  // of the request
  int64_t created = 0;
  std::string model;
  uint64_t seed = 0;  // of the generated text
  uint32_t prompt_tokens = 0;
  bool stops = false;                // finish_reason: "stop", else "length"
  std::vector<ToolCallReply> tools;  // of chats; completions have none
};

// Names the engine that computed the prompt, as the label `engine` of /metrics does.
std::string engine_header(uint32_t engine);

// Formats one request's reply, as a stream or whole.
class Reply {
 public:
  explicit Reply(ReplyFacts facts);

  // The response's header, and in a chat the event that opens the message. `headers` are further ones.
  void begin_stream(bool close, std::string_view headers, std::string* out) const;
  // The event of output token `index`.
  void add_token(uint32_t index, std::string* out) const;
  // Tool calls, finish_reason, usage and [DONE].
  void end_stream(uint32_t output_tokens, uint32_t cached_tokens, std::string* out) const;
  // An error after the stream has begun; ends it.
  void fail_stream(const ApiError& error, std::string* out) const;

  std::string whole(uint32_t output_tokens, uint32_t cached_tokens) const;

 private:
  std::string event(std::string_view choice, std::string_view usage = {}) const;
  const char* finish_reason() const;

  ReplyFacts facts_;
  std::string head_;            // fields that every event begins with
  std::string before_, after_;  // of an event's token, framed as a chunk of HTTP
};

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_API_REPLY_H_
