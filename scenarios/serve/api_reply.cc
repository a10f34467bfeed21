#include "scenarios/serve/api_reply.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace kvtwin::serve {
namespace {

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const char* reason_of(unsigned status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Payload Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

// One event of a stream, as a chunk of HTTP.
void add_event(std::string_view data, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "{:x}\r\ndata: {}\n\n\r\n", data.size() + 8, data);
}

std::string usage_object(uint32_t prompt, uint32_t output, uint32_t cached) {
  return fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":{}}}}})",
                     prompt, output, uint64_t{prompt} + output, cached);
}

// `index`: whether calls are numbered, as in streams.
std::string tool_calls_array(const ReplyFacts& facts, bool index) {
  std::string out = "[";
  for (size_t i = 0; i < facts.tools.size(); ++i) {
    const ToolCallReply& tool = facts.tools[i];
    out += fmt::format(
        R"({}{{{}"id":"call_{:08x}_{}","type":"function","function":{{"name":{},"arguments":{}}}}})",
        i > 0 ? "," : "", index ? fmt::format(R"("index":{},)", i) : "", facts.id, i, json_text(tool.name),
        json_text(tool.arguments));
  }
  return out + "]";
}

std::string error_object(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? "null" : json_text(text); };
  return fmt::format(R"({{"error":{{"message":{},"type":{},"param":{},"code":{}}}}})",
                     json_text(error.message), json_text(error.type), or_null(error.param),
                     or_null(error.code));
}

}  // namespace

std::string http_response(unsigned status, std::string_view content_type, std::string_view body, bool close,
                          std::string_view more_headers) {
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}{}\r\n{}", status,
                     reason_of(status), content_type, body.size(), more_headers,
                     close ? "Connection: close\r\n" : "", body);
}

std::string error_response(const ApiError& error, bool close) {
  const bool later = error.status == 429 || error.status == 503;
  const std::string headers = later                 ? "Retry-After: 1\r\n"
                              : error.status == 401 ? "WWW-Authenticate: Bearer\r\n"
                              : error.allow.empty() ? ""
                                                    : "Allow: " + error.allow + "\r\n";
  return http_response(error.status, "application/json", error_object(error), close, headers);
}

std::string engine_header(uint32_t engine) { return fmt::format("X-Kvtwin-Engine: {}\r\n", engine); }

Reply::Reply(ReplyFacts facts) : facts_(std::move(facts)) {
  if (!facts_.chat) facts_.tools.clear();
  head_ = fmt::format(R"({{"id":"{}-{:08x}","object":"{}","created":{},"model":{})",
                      facts_.chat ? "chatcmpl" : "cmpl", facts_.id,
                      facts_.chat ? "chat.completion.chunk" : "text_completion", facts_.created,
                      json_text(facts_.model));
  const std::string token(kBytesPerToken, '#');
  const std::string framed_token = event((facts_.chat ? R"({"index":0,"delta":{"content":")" + token + R"("})"
                                                      : R"({"index":0,"text":")" + token + "\"") +
                                         R"(,"logprobs":null,"finish_reason":null})");
  std::string framed;
  add_event(framed_token, &framed);
  const size_t at = framed.find(token);
  before_ = framed.substr(0, at);
  after_ = framed.substr(at + token.size());
}

std::string Reply::event(std::string_view choice, std::string_view usage) const {
  return fmt::format(R"({},"choices":[{}]{}{}}})", head_, choice, usage.empty() ? "" : R"(,"usage":)", usage);
}

const char* Reply::finish_reason() const {
  return !facts_.stops ? "length" : facts_.tools.empty() ? "stop" : "tool_calls";
}

void Reply::begin_stream(bool close, std::string_view headers, std::string* out) const {
  *out += "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n";
  *out += headers;
  *out += close ? "Connection: close\r\n" : "";
  *out += "Transfer-Encoding: chunked\r\n\r\n";
  if (!facts_.chat) return;
  add_event(
      event(R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null})"),
      out);
}

void Reply::add_token(uint32_t index, std::string* out) const {
  *out += before_;
  *out += generated_token(facts_.seed, index);
  *out += after_;
}

void Reply::end_stream(uint32_t output_tokens, uint32_t cached_tokens, std::string* out) const {
  const char* const reason = finish_reason();
  if (facts_.chat) {
    if (facts_.stops && !facts_.tools.empty())
      add_event(event(fmt::format(
                    R"({{"index":0,"delta":{{"tool_calls":{}}},"logprobs":null,"finish_reason":null}})",
                    tool_calls_array(facts_, true))),
                out);
    add_event(
        event(fmt::format(R"({{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"{}"}})", reason)),
        out);
  } else {
    add_event(event(fmt::format(R"({{"index":0,"text":"","logprobs":null,"finish_reason":"{}"}})", reason)),
              out);
  }
  if (facts_.include_usage)
    add_event(event("", usage_object(facts_.prompt_tokens, output_tokens, cached_tokens)), out);
  add_event("[DONE]", out);
  *out += "0\r\n\r\n";
}

void Reply::fail_stream(const ApiError& error, std::string* out) const {
  add_event(error_object(error), out);
  add_event("[DONE]", out);
  *out += "0\r\n\r\n";
}

std::string Reply::whole(uint32_t output_tokens, uint32_t cached_tokens) const {
  std::string text;
  for (uint32_t i = 0; i < output_tokens; ++i) text += generated_token(facts_.seed, i);
  std::string head = head_;
  if (const size_t chunk = head.find(".chunk"); facts_.chat && chunk != std::string::npos)
    head.erase(chunk, 6);
  const bool calls = facts_.chat && facts_.stops && !facts_.tools.empty();
  const std::string content =
      facts_.chat ? fmt::format(R"("message":{{"role":"assistant","content":"{}"{}}})", text,
                                calls ? R"(,"tool_calls":)" + tool_calls_array(facts_, false) : "")
                  : fmt::format(R"("text":"{}")", text);
  return fmt::format(R"({},"choices":[{{"index":0,{},"logprobs":null,"finish_reason":"{}"}}],"usage":{}}})",
                     head, content, finish_reason(),
                     usage_object(facts_.prompt_tokens, output_tokens, cached_tokens));
}

}  // namespace kvtwin::serve
