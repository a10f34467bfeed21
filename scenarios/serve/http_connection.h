// HttpConnection is one client's connection: it reads a request, has it answered, writes the answer, and
// reads the next request.

#ifndef KVTWIN_SCENARIOS_SERVE_HTTP_CONNECTION_H_
#define KVTWIN_SCENARIOS_SERVE_HTTP_CONNECTION_H_

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "scenarios/serve/api_reply.h"
#include "scenarios/serve/http_server.h"

namespace kvtwin::serve {

class HttpConnection;

// How a request that reached the simulation ended for its client.
enum class ReplyEnd : uint8_t { kAnswered, kRefused, kCut };

// ConnectionHost is the server, as its connections use it. All members are called in the server's thread.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual const ServerOptions& options() const = 0;
  virtual bool stopping() const = 0;
  virtual std::string metrics() = 0;
  // A request's body is complete. The host parses it and calls connection->start_reply() or reply().
  virtual void take_request(std::shared_ptr<HttpConnection> connection, bool chat, std::string session,
                            std::string body) = 0;
  // `whole_tokens`: of an answer that was not streamed.
  virtual void reply_ended(RequestId request, ReplyEnd end, uint32_t whole_tokens) = 0;
  virtual void client_went_away(RequestId request) = 0;
  // A request was answered with an error before it reached the simulation.
  virtual void refused() = 0;
  // The bytes of a stream's token, counted from 1, were given to the socket; the token existed at `at`.
  virtual void token_sent(RequestId request, uint32_t token, Instant at) = 0;
  virtual void closed(HttpConnection* connection) = 0;
};

class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(boost::asio::ip::tcp::socket socket, ConnectionHost* host);

  void read_request();
  // Ends the connection if it waits for a request.
  void close_if_idle();
  void close();
  // Closes if the client has read nothing since `since`, although bytes wait for it.
  void close_if_stalled(std::chrono::steady_clock::time_point since);

  // A complete response.
  void reply(std::string response);
  void reply(const ApiError& error);
  // The request has been sent to the simulation; take() follows.
  void start_reply(RequestId request, bool stream, Reply reply);
  void take(const Progress& progress);
  // The server stops: the running request gets an error.
  void abandon();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using Code = boost::beast::error_code;
  struct Running {
    RequestId request{};
    bool stream = false, began = false, watching = false;
    Reply reply;
    uint32_t known = 0, sent = 0;  // tokens; sent: they are in out_
    EngineId engine{};
    std::deque<Instant> times{};  // of the tokens that are known and not sent
    std::optional<Progress> end{};
    bool complete = false;  // all of the reply is in out_
  };

  struct Unwritten {
    RequestId request{};
    uint32_t token = 0;
    Instant at{};
    uint64_t end = 0;  // of its bytes in the stream
  };

  bool closing() const;
  void read_header();
  void read_body();
  void read_more();
  void failed_to_read(Code error);
  void route();
  bool known_get(const std::string& path) const;
  void route_get(const std::string& path);
  std::string models_body() const;
  std::optional<ApiError> check_header() const;
  std::string session_header() const;
  void watch();
  void pump();
  void end_reply();
  void flush();
  void wrote(size_t bytes);
  void finish_response();
  void drain();
  void went_away();

  boost::beast::tcp_stream stream_;
  ConnectionHost& host_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::optional<Running> running_;
  std::string out_;
  size_t out_begin_ = 0;
  uint64_t written_ = 0;             // bytes, of all responses
  std::deque<Unwritten> unwritten_;  // tokens in out_
  bool keep_alive_ = true, waiting_to_write_ = false, reading_ = false, is_closed_ = false;
  bool response_pending_ = false;  // out_ ends with the end of a response
  std::chrono::steady_clock::time_point last_write_{};
};

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_HTTP_CONNECTION_H_
