// The bodies of POST /v1/chat/completions and /v1/completions.
//
// Fields that change the text but not its length (temperature, stop, logit_bias, ...) are accepted and not
// read. Fields that ask for what the server cannot give (n > 1, echo, images) are errors.

#ifndef KVTWIN_SCENARIOS_SERVE_API_REQUEST_H_
#define KVTWIN_SCENARIOS_SERVE_API_REQUEST_H_

#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "scenarios/serve/prompt_tokens.h"

namespace kvtwin::serve {

// ApiError is OpenAI's error object with its HTTP status.
struct ApiError {
  unsigned status = 400;
  std::string message{};
  std::string param{};                         // "": none
  std::string type = "invalid_request_error";  // or "server_error", "rate_limit_error", ...
  std::string code{};                          // "": none
  std::string allow{};                         // methods that the path takes, with status 405
};

struct ApiRequest {
  bool chat = false;
  std::string model;  // "": not given
  std::string user;   // "": not given
  PromptTokens prompt;
  std::optional<uint32_t> max_tokens;
  uint32_t min_tokens = 0;
  bool ignore_eos = false;
  bool stream = false, include_usage = false;
};

tl::expected<ApiRequest, ApiError> parse_api_request(bool chat, std::string_view body);

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_API_REQUEST_H_
