// HttpServer answers OpenAI's requests with the simulation's times.
//
// One thread does all input and output, so that a token is sent at its time; another parses the bodies of
// requests. Each stream has a buffer of bounded size. When a client does not read, its stream alone stops:
// tokens that exist but do not fit are times, and are formatted when there is room.
//
// A connection carries one request at a time. A client that goes away cancels its request.

#ifndef KVTWIN_SCENARIOS_SERVE_HTTP_SERVER_H_
#define KVTWIN_SCENARIOS_SERVE_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/result.h"
#include "scenarios/serve/live_client.h"
#include "scenarios/serve/trace_replies.h"

namespace kvtwin::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  std::string api_key;   // "": none is asked for
  std::string model;
  uint64_t body_bytes_max = uint64_t{64} << 20;
  uint32_t streams_max = 4096;        // requests at once; beyond: 429
  uint32_t stream_buffer = 64 << 10;  // bytes of a stream that wait for its client
  // A client that reads nothing for so long is disconnected, and one that sends nothing of a request that it
  // has begun.
  Duration stall{120'000'000'000};
  Duration grace{10'000'000'000};        // for streams that run when the server begins to stop
  uint32_t output_tokens_default = 256;  // where neither the request nor the trace says
  uint32_t context_tokens_max = 0;       // 0: no limit
  uint32_t unit_tokens = 16;             // of the identity of prompts
  // File for the times of streamed tokens, in order of sending; "": none. due_ns and sent_ns are times of
  // CLOCK_MONOTONIC; a token is sent when its bytes are given to the socket.
  std::string token_log;
};

// Each request is one of: answered completely, refused with an error, cancelled by its client, or cut when
// the server stopped. Tokens are those that were sent, of answers that were not streamed if they are
// complete.
struct ServerCounts {
  uint64_t answered = 0, refused = 0, cancelled = 0, cut = 0, tokens = 0;
};

// Error: no address of this machine.
Result<void> check_host(const std::string& host);

class HttpServer {
 public:
  // `clock` and `trace` must outlive this; `trace` may be null.
  HttpServer(ServerOptions options, const WallClock& clock, TraceReplies* trace);
  ~HttpServer();

  // Opens the port. Errors: the address is not one of this machine's, or is in use; the token log cannot be
  // written.
  Result<void> listen();
  uint16_t port() const;

  // Serves until SIGINT or SIGTERM, or until stop(); then calls client->stop(). `metrics` returns the text
  // of /metrics.
  void start(LiveClient* client, std::function<std::string()> metrics);
  // Progress can be taken from the client. By any thread.
  void notify();
  void stop();
  void join();
  ServerCounts counts() const;  // after join()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_HTTP_SERVER_H_
