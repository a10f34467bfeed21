#include "scenarios/serve/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <ctime>
#include <utility>

namespace kvtwin::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr std::chrono::seconds kIdleTimeout{75};  // between two requests
constexpr size_t kReadBytes = 4 << 10;            // of a request's first read
constexpr std::chrono::seconds kDrainTimeout{2};
constexpr size_t kDrainBytes = 64 << 10;
constexpr uint32_t kHeaderBytesMax = 16 << 10;

// Takes the same time wherever texts of equal length differ.
bool equal_keys(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned different = 0;
  for (size_t i = 0; i < a.size(); ++i)
    different |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return different == 0;
}

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

// "Bearer KEY"; the scheme may be in any case.
bool has_key(std::string_view header, std::string_view key) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view scheme = header.substr(0, kScheme.size());
  if (!beast::iequals({scheme.data(), scheme.size()}, {kScheme.data(), kScheme.size()})) return false;
  header.remove_prefix(kScheme.size());
  while (header.starts_with(' ')) header.remove_prefix(1);
  return equal_keys(header, key);
}

}  // namespace

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, ConnectionHost* host)
    : stream_(std::move(socket)), host_(*host) {
  Code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  stream_.socket().set_option(
      asio::socket_base::send_buffer_size(static_cast<int>(host_.options().stream_buffer)), ignored);
  stream_.socket().non_blocking(true, ignored);
}

bool HttpConnection::closing() const { return !keep_alive_ || host_.stopping(); }

void HttpConnection::read_request() {
  if (is_closed_) return;
  parser_.emplace();
  parser_->body_limit(host_.options().body_bytes_max);
  parser_->header_limit(kHeaderBytesMax);
  reading_ = true;
  if (buffer_.size() > 0) return read_header();
  stream_.expires_after(kIdleTimeout);
  stream_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](Code error, size_t bytes) {
    if (error) return self->failed_to_read(error);
    self->buffer_.commit(bytes);
    self->read_header();
  });
}

void HttpConnection::read_header() {
  if (is_closed_) return;
  stream_.expires_after(std::chrono::nanoseconds(host_.options().stall.ns));
  http::async_read_header(stream_, buffer_, *parser_, [self = shared_from_this()](Code error, size_t) {
    if (error) return self->failed_to_read(error);
    self->reading_ = false;
    self->keep_alive_ = self->parser_->keep_alive();
    if (const std::optional<ApiError> wrong = self->check_header()) {
      self->keep_alive_ = false;  // the body is not read
      return self->reply(*wrong);
    }
    self->read_body();
  });
}

std::optional<ApiError> HttpConnection::check_header() const {
  const auto& message = parser_->get();
  const ServerOptions& options = host_.options();
  const std::string_view path = view(message.target());
  if (!options.api_key.empty() && path.starts_with("/v1") &&
      !has_key(view(message[http::field::authorization]), options.api_key))
    return ApiError{.status = 401,
                    .message = "the API key is missing or wrong",
                    .type = "invalid_request_error",
                    .code = "invalid_api_key"};
  const auto length = parser_->content_length();
  if (length && *length > options.body_bytes_max)
    return ApiError{.status = 413,
                    .message = fmt::format("the body has {} bytes; this server reads at most {}", *length,
                                           options.body_bytes_max)};
  return std::nullopt;
}

void HttpConnection::read_body() {
  if (view(parser_->get()[http::field::expect]) == "100-continue") {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    Code error;
    asio::write(stream_.socket(), asio::buffer(kContinue.data(), kContinue.size()), error);
  }
  parser_->eager(true);
  read_more();
}

void HttpConnection::read_more() {
  if (is_closed_) return;
  if (parser_->is_done()) {
    stream_.expires_never();
    return route();
  }
  stream_.expires_after(std::chrono::nanoseconds(host_.options().stall.ns));
  http::async_read_some(stream_, buffer_, *parser_, [self = shared_from_this()](Code error, size_t) {
    if (error) return self->failed_to_read(error);
    self->read_more();
  });
}

void HttpConnection::failed_to_read(Code error) {
  reading_ = false;
  if (is_closed_) return;
  keep_alive_ = false;
  stream_.expires_never();
  if (error == http::error::body_limit)
    return reply(ApiError{.status = 413,
                          .message = fmt::format("the body is too large; this server reads at most {} bytes",
                                                 host_.options().body_bytes_max)});
  if (error == http::error::header_limit)
    return reply(ApiError{.status = 431, .message = "the header is too large"});
  const bool malformed = error.category() == http::make_error_code(http::error::bad_method).category() &&
                         error != http::error::end_of_stream && error != http::error::partial_message;
  if (malformed) return reply(ApiError{.message = "malformed HTTP request: " + error.message()});
  close();
}

std::string HttpConnection::session_header() const {
  for (const char* const name : {"x-session-id", "x-correlation-id"}) {
    if (const auto found = parser_->get().find(name); found != parser_->get().end())
      return std::string(view(found->value()));
  }
  return {};
}

void HttpConnection::route() {
  const auto& message = parser_->get();
  std::string path(view(message.target()));
  path = path.substr(0, path.find('?'));
  const bool chat = path == "/v1/chat/completions";
  if (chat || path == "/v1/completions") {
    if (message.method() != http::verb::post)
      return reply(ApiError{.status = 405, .message = path + " takes POST", .allow = "POST"});
    return host_.take_request(shared_from_this(), chat, session_header(), std::move(parser_->get().body()));
  }
  if (!known_get(path)) return reply(ApiError{.status = 404, .message = "there is no " + path});
  if (message.method() != http::verb::get && message.method() != http::verb::head)
    return reply(ApiError{.status = 405, .message = path + " takes GET and HEAD", .allow = "GET, HEAD"});
  route_get(path);
}

bool HttpConnection::known_get(const std::string& path) const {
  for (const char* const known : {"/v1/models", "/metrics", "/health", "/ping", "/version"}) {
    if (path == known) return true;
  }
  return path == "/v1/models/" + host_.options().model;
}

void HttpConnection::route_get(const std::string& path) {
  const auto good = [this](std::string_view type, const std::string& body) {
    reply(http_response(200, type, body, closing()));
  };
  if (path == "/v1/models")
    return good("application/json", fmt::format(R"({{"object":"list","data":[{}]}})", models_body()));
  if (path.starts_with("/v1/models/")) return good("application/json", models_body());
  if (path == "/metrics") return good("text/plain; version=0.0.4; charset=utf-8", host_.metrics());
  if (path == "/health" || path == "/ping") {
    if (!host_.stopping()) return good("application/json", "");
    return reply(ApiError{.status = 503, .message = "the server is stopping", .type = "server_error"});
  }
  good("application/json", R"({"version":"kvtwin"})");
}

std::string HttpConnection::models_body() const {
  const ServerOptions& options = host_.options();
  return fmt::format(R"({{"id":"{}","object":"model","created":0,"owned_by":"kvtwin","max_model_len":{}}})",
                     options.model, options.context_tokens_max);
}

void HttpConnection::reply(const ApiError& error) {
  host_.refused();
  reply(error_response(error, closing()));
}

void HttpConnection::reply(std::string response) {
  // The answer to HEAD is that to GET without its body.
  if (parser_ && parser_->get().method() == http::verb::head)
    response.resize(std::min(response.size(), response.find("\r\n\r\n") + 4));
  out_ += response;
  response_pending_ = true;
  flush();
}

void HttpConnection::start_reply(RequestId request, bool stream, Reply reply) {
  running_.emplace(Running{.request = request, .stream = stream, .reply = std::move(reply)});
  last_write_ = std::chrono::steady_clock::now();
  if (is_closed_) return went_away();
  watch();
}

// Notices when the client goes away while its request runs. Bytes of its next request end the watch; a write
// then finds out.
void HttpConnection::watch() {
  running_->watching = true;
  stream_.socket().async_wait(
      asio::ip::tcp::socket::wait_read, [self = shared_from_this(), request = running_->request](Code error) {
        if (error || self->is_closed_ || !self->running_ || self->running_->request != request) return;
        char byte = 0;
        const auto got = ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return self->went_away();
        if (got < 0) self->watch();
      });
}

void HttpConnection::take(const Progress& progress) {
  if (!running_) return;
  Running& running = *running_;
  running.known = std::max(running.known, progress.tokens);
  running.engine = progress.engine;
  if (progress.kind != Progress::Kind::kToken) running.end = progress;
  if (running.stream) {
    while (running.sent + running.times.size() < running.known) running.times.push_back(progress.at);
    pump();
  } else if (running.end) {
    end_reply();
  }
}

// Formats as many tokens as fit into the buffer, and again when the socket takes all of them.
void HttpConnection::pump() {
  const size_t room = host_.options().stream_buffer;
  while (running_ && !running_->complete) {
    Running& running = *running_;
    if (!running.began && running.known > 0) {
      running.began = true;
      running.reply.begin_stream(closing(), engine_header(raw(running.engine)), &out_);
    }
    while (running.sent < running.known && out_.size() - out_begin_ < room) {
      running.reply.add_token(running.sent++, &out_);
      unwritten_.push_back(
          {running.request, running.sent, running.times.front(), written_ + (out_.size() - out_begin_)});
      running.times.pop_front();
    }
    if (running.end && running.sent == running.known) return end_reply();
    flush();
    if (waiting_to_write_ || (running_ && running_->sent == running_->known)) return;
  }
}

void HttpConnection::end_reply() {
  Running& running = *running_;
  const Progress& end = *running.end;
  running.complete = true;
  const auto cut = [&](const ApiError& error) {
    running.began ? running.reply.fail_stream(error, &out_) : void(out_ += error_response(error, closing()));
  };
  if (end.kind == Progress::Kind::kRejected) {
    cut({.message = "the prompt and its answer are longer than this server's model or memory allows",
         .code = "context_length_exceeded"});
  } else if (end.kind == Progress::Kind::kCancelled) {
    cut({.status = 503, .message = "the server stops", .type = "server_error"});
  } else if (running.stream) {
    running.reply.end_stream(end.tokens, end.cached_tokens, &out_);
  } else {
    out_ += http_response(200, "application/json", running.reply.whole(end.tokens, end.cached_tokens),
                          closing(), engine_header(raw(end.engine)));
  }
  response_pending_ = true;
  flush();
}

void HttpConnection::flush() {
  while (!waiting_to_write_ && out_begin_ < out_.size()) {
    Code error;
    const size_t bytes =
        stream_.socket().write_some(asio::buffer(out_.data() + out_begin_, out_.size() - out_begin_), error);
    if (error == asio::error::would_block || error == asio::error::try_again) {
      waiting_to_write_ = true;
      stream_.socket().async_wait(asio::ip::tcp::socket::wait_write,
                                  [self = shared_from_this()](Code failed) {
                                    self->waiting_to_write_ = false;
                                    if (failed || self->is_closed_) return;
                                    self->running_ && self->running_->stream ? self->pump() : self->flush();
                                    if (self->running_ && self->running_->complete) self->flush();
                                  });
      return;
    }
    if (error) return went_away();
    wrote(bytes);
  }
  if (out_begin_ == out_.size() && response_pending_) finish_response();
}

void HttpConnection::wrote(size_t bytes) {
  last_write_ = std::chrono::steady_clock::now();
  out_begin_ += bytes;
  written_ += bytes;
  for (; !unwritten_.empty() && unwritten_.front().end <= written_; unwritten_.pop_front()) {
    const Unwritten& token = unwritten_.front();
    host_.token_sent(token.request, token.token, token.at);
  }
  if (out_begin_ < out_.size() && out_begin_ < host_.options().stream_buffer) return;
  out_.erase(0, out_begin_);
  out_begin_ = 0;
}

void HttpConnection::finish_response() {
  response_pending_ = false;
  if (running_) {
    const RequestId request = running_->request;
    const Progress::Kind kind = running_->end->kind;
    const ReplyEnd end = kind == Progress::Kind::kFinished   ? ReplyEnd::kAnswered
                         : kind == Progress::Kind::kRejected ? ReplyEnd::kRefused
                                                             : ReplyEnd::kCut;
    const uint32_t whole = running_->stream || end != ReplyEnd::kAnswered ? 0 : running_->end->tokens;
    running_.reset();
    host_.reply_ended(request, end, whole);
  }
  if (closing()) {
    Code ignored;
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kDrainTimeout);
    return drain();
  }
  // Not called from here: a client that sends many requests at once must not deepen the stack.
  asio::post(stream_.get_executor(), [self = shared_from_this()] { self->read_request(); });
}

// Closing a socket while bytes of a request are unread would reset the connection, and the client might lose
// the reply.
void HttpConnection::drain() {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kDrainBytes), [self = shared_from_this()](Code error, size_t) {
    if (self->is_closed_) return;
    error ? self->close() : self->drain();
  });
}

void HttpConnection::went_away() {
  if (running_) {
    const RequestId request = running_->request;
    running_.reset();
    host_.client_went_away(request);
  }
  close();
}

void HttpConnection::abandon() {
  if (!running_) return;
  running_->end = Progress{running_->request, Progress::Kind::kCancelled, running_->known, 0, {}};
  keep_alive_ = false;
  if (!running_->complete) end_reply();
}

void HttpConnection::close_if_idle() {
  if (reading_) close();
}

void HttpConnection::close_if_stalled(std::chrono::steady_clock::time_point since) {
  if (waiting_to_write_ && last_write_ < since) went_away();
}

void HttpConnection::close() {
  if (std::exchange(is_closed_, true)) return;
  Code ignored;
  stream_.socket().close(ignored);
  host_.closed(this);
}

}  // namespace kvtwin::serve
