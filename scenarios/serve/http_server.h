// HttpServer answers OpenAI's requests with the simulation's times.
//
// One thread does all input and output, so that a token is sent at its time; another parses the bodies of
// requests. Each stream has a buffer of bounded size. When a client does not read, its stream alone stops:
// tokens that exist but do not fit are a number, and are formatted when there is room.
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
  uint32_t streams_max = 4096;           // requests at once; beyond: 429
  uint32_t stream_buffer = 64 << 10;     // bytes of a stream that wait for its client
  Duration stall{120'000'000'000};       // a client that reads nothing for so long is disconnected
  Duration grace{10'000'000'000};        // for streams that run when the server begins to stop
  uint32_t output_tokens_default = 256;  // where neither the request nor the trace says
  uint32_t context_tokens_max = 0;       // 0: no limit
  uint32_t unit_tokens = 16;             // of the identity of prompts
  // File for the times of streamed tokens, in order of sending; "": none. due_ns and sent_ns are times of
  // CLOCK_MONOTONIC. Tokens that a slow client delayed are left out.
  std::string token_log;
};

// Requests, in the words of the summary at the end.
struct ServerCounts {
  uint64_t requests = 0, refused = 0, disconnected = 0, tokens = 0;
};

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
