// HttpRequests sends streaming requests to an OpenAI-compatible server and times their tokens (libcurl).
//
// Times are ns of a steady clock since the constructor. A reply is a success if its status is 200, its stream
// ended with [DONE], and it had a token.

#ifndef KVTWIN_SCENARIOS_OBSERVE_HTTP_REQUESTS_H_
#define KVTWIN_SCENARIOS_OBSERVE_HTTP_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

// Whether `text` can be the address of a server.
Result<void> check_server_url(const std::string& text);

struct HttpReply {
  uint64_t id = 0;
  int64_t sent_ns = 0, first_token_ns = 0, last_token_ns = 0, end_ns = 0;
  uint64_t chunks = 0;  // that carried tokens
  // The server's usage; cached_tokens, of the prompt, if it reports them.
  std::optional<uint64_t> prompt_tokens, output_tokens, cached_tokens;
  uint16_t engine = 0;  // that kvtwin serve names; else 0
  std::string error;    // "": success
};

struct HttpOptions {
  std::string url;      // with or without /v1
  std::string api_key;  // "": none
  int64_t timeout_ms = 600'000;
};

class HttpRequests {
 public:
  explicit HttpRequests(const HttpOptions& options);
  ~HttpRequests();

  int64_t now_ns() const;
  // The names of the models that GET /v1/models lists. Error: the server cannot be reached, or is not one.
  Result<std::vector<std::string>> models();
  // Sends POST /v1/`path`, with the session's name as X-Session-Id. The reply comes from poll().
  void send(uint64_t id, const std::string& path, const std::string& body, const std::string& session);
  // Waits until something happens, at most `wait_ms`, and returns the replies that are complete.
  std::vector<HttpReply> poll(int wait_ms);
  // Closes the connections of all requests that have no reply yet; poll() does not return these.
  void drop_all();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OBSERVE_HTTP_REQUESTS_H_
