#include "scenarios/serve/http_server.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <csignal>
#include <cstdio>
#include <deque>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "scenarios/serve/http_connection.h"

namespace kvtwin::serve {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using Code = boost::system::error_code;

constexpr uint32_t kOtherConnections = 256;  // open at once, in addition to those with streams
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kSweep{1};

void raise_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// SimGrid sets a handler of its own for SIGINT. So the signals are blocked, in this thread and those that it
// starts, and read from a descriptor.
sigset_t block_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Of a name with several addresses, IPv4 first: clients try localhost's 127.0.0.1 in any case.
Result<asio::ip::address> address_of(const std::string& host) {
  asio::io_context io;
  Code error;
  const auto found = Tcp::resolver(io).resolve(host, "", error);
  if (error || found.empty())
    return make_error("--host=" + host, "is neither an IP address nor the name of a host",
                      "--host=127.0.0.1, or 0.0.0.0 for every address");
  for (const auto& entry : found) {
    if (entry.endpoint().address().is_v4()) return entry.endpoint().address();
  }
  return found.begin()->endpoint().address();
}

}  // namespace

Result<void> check_host(const std::string& host) {
  const Result<asio::ip::address> address = address_of(host);
  if (!address) return tl::unexpected<Error>(address.error());
  asio::io_context io;
  Tcp::acceptor acceptor(io);
  const Tcp::endpoint endpoint(*address, 0);
  Code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.bind(endpoint, error);
  using boost::system::errc::address_not_available;
  if (error != make_error_condition(address_not_available) &&
      error != asio::error::address_family_not_supported)
    return {};
  return make_error("--host=" + host, "is no address of this machine",
                    "--host=127.0.0.1, or 0.0.0.0 for every address");
}

struct HttpServer::State final : ConnectionHost {
  State(ServerOptions given, const WallClock& wall, TraceReplies* replies)
      : options_(std::move(given)),
        clock(wall),
        trace(replies),
        acceptor(io),
        signals(io),
        due_timer(io),
        grace_timer(io),
        sweep_timer(io),
        accept_timer(io) {}
  ~State() override {
    if (log != nullptr) std::fclose(log);
  }

  const ServerOptions& options() const override { return options_; }
  bool stopping() const override { return is_stopping; }
  std::string metrics() override { return metrics_text(); }
  void take_request(std::shared_ptr<HttpConnection> connection, bool chat, std::string session,
                    std::string body) override;
  void reply_ended(RequestId request, ReplyEnd end, uint32_t whole_tokens) override;
  void client_went_away(RequestId request) override;
  void refused() override { ++counts.refused; }
  void token_sent(RequestId request, uint32_t token, Instant at) override;
  void closed(HttpConnection* connection) override { connections.erase(connection); }

  void watch_signals();
  void wait_for_signal();
  void accept();
  void accepted(Tcp::socket socket);
  std::optional<ApiError> plan(ApiRequest* api, const std::string& session, LiveRequest* live,
                               const TraceReply** answer);
  void admit(const std::shared_ptr<HttpConnection>& connection, ApiRequest api,
             std::unique_ptr<LiveRequest> live, const TraceReply* answer);
  void collect();
  void send_due();
  void write_log();
  bool forget(RequestId request);
  void end_if_done();
  void sweep();
  void begin_stop();
  void end_stop();

  const ServerOptions options_;
  const WallClock& clock;
  TraceReplies* const trace;                           // of the parsing thread
  const sigset_t stop_signals = block_stop_signals();  // before any thread is started
  asio::io_context io{1};
  asio::thread_pool parser{1};
  Tcp::acceptor acceptor;
  asio::posix::stream_descriptor signals;
  signalfd_siginfo signal{};
  asio::steady_timer due_timer, grace_timer, sweep_timer, accept_timer;
  std::thread thread;
  LiveClient* client = nullptr;
  std::function<std::string()> metrics_text;
  std::FILE* log = nullptr;
  struct SentToken {
    RequestId request{};
    uint32_t token = 0;
    Instant at{};
    WallClock::TimePoint sent;
  };
  std::vector<SentToken> log_rows;  // not written yet

  bool is_stopping = false, ended = false;
  uint32_t next_id = 0, parsing = 0;
  ServerCounts counts;
  std::unordered_map<HttpConnection*, std::weak_ptr<HttpConnection>> connections;
  std::unordered_map<uint32_t, std::shared_ptr<HttpConnection>> streams;  // by request
  std::vector<Progress> taken;
  std::deque<Progress> due;  // in order of time
};

HttpServer::HttpServer(ServerOptions options, const WallClock& clock, TraceReplies* trace)
    : state_(std::make_unique<State>(std::move(options), clock, trace)) {}
HttpServer::~HttpServer() { join(); }

Result<void> HttpServer::listen() {
  State& s = *state_;
  const std::string where = fmt::format("--host={} --port={}", s.options_.host, s.options_.port);
  raise_open_files();
  const Result<asio::ip::address> address = address_of(s.options_.host);
  if (!address) return tl::unexpected<Error>(address.error());
  const Tcp::endpoint endpoint(*address, s.options_.port);
  Code error;
  s.acceptor.open(endpoint.protocol(), error);
  if (!error) s.acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) s.acceptor.bind(endpoint, error);
  if (!error) s.acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return make_error(where, "cannot listen: " + error.message(), "another --port; 0 takes a free one");
  if (s.options_.token_log.empty()) return {};
  s.log = std::fopen(s.options_.token_log.c_str(), "w");
  if (s.log == nullptr) return make_error("--token-log=" + s.options_.token_log, "cannot be written");
  fmt::print(s.log, "request,token,simulated_ns,due_ns,sent_ns\n");
  return {};
}

uint16_t HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }
ServerCounts HttpServer::counts() const { return state_->counts; }

void HttpServer::start(LiveClient* client, std::function<std::string()> metrics) {
  State& s = *state_;
  s.client = client;
  s.metrics_text = std::move(metrics);
  s.watch_signals();
  s.accept();
  s.sweep();
  s.thread = std::thread([&s] {
    prctl(PR_SET_TIMERSLACK, 1);  // nanosecond; the default makes every timer 50 microseconds late
    s.io.run();
  });
}

void HttpServer::notify() {
  asio::post(state_->io, [s = state_.get()] { s->collect(); });
}

void HttpServer::stop() {
  asio::post(state_->io, [s = state_.get()] { s->end_stop(); });
}

void HttpServer::join() {
  if (state_->thread.joinable()) state_->thread.join();
  state_->parser.join();
}

// The first signal begins to stop, the second ends at once.
void HttpServer::State::watch_signals() {
  signals.assign(signalfd(-1, &stop_signals, SFD_NONBLOCK | SFD_CLOEXEC));
  wait_for_signal();
}

void HttpServer::State::wait_for_signal() {
  signals.async_read_some(asio::buffer(&signal, sizeof signal), [this](Code error, size_t) {
    if (error) return;
    is_stopping ? end_stop() : begin_stop();
    wait_for_signal();
  });
}

void HttpServer::State::accept() {
  acceptor.async_accept([this](Code error, Tcp::socket socket) {
    if (error == asio::error::operation_aborted || is_stopping) return;
    if (!error) {
      accepted(std::move(socket));
      return accept();
    }
    // Out of files, most likely: connections that end make room.
    accept_timer.expires_after(kAcceptPause);
    accept_timer.async_wait([this](Code failed) {
      if (!failed) accept();
    });
  });
}

void HttpServer::State::accepted(Tcp::socket socket) {
  const auto connection = std::make_shared<HttpConnection>(std::move(socket), this);
  connections.emplace(connection.get(), connection);
  if (connections.size() <= size_t{options_.streams_max} + kOtherConnections)
    return connection->read_request();
  ++counts.refused;
  connection->reply(
      error_response({.status = 503, .message = "too many connections", .type = "server_error"}, true));
  connection->close();
}

void HttpServer::State::take_request(std::shared_ptr<HttpConnection> connection, bool chat,
                                     std::string session, std::string body) {
  if (is_stopping)
    return connection->reply(
        ApiError{.status = 503, .message = "the server is stopping", .type = "server_error"});
  if (streams.size() + parsing >= options_.streams_max)
    return connection->reply(ApiError{
        .status = 429,
        .message = fmt::format("{} requests are running; this server takes no more", options_.streams_max),
        .type = "rate_limit_error",
        .code = "rate_limit_exceeded"});
  ++parsing;
  const Instant arrived = clock.now();
  asio::post(parser, [this, connection, chat, arrived, session = std::move(session), body = std::move(body)] {
    auto api = parse_api_request(chat, body);
    auto live = std::make_unique<LiveRequest>();
    const TraceReply* answer = nullptr;
    std::optional<ApiError> wrong;
    if (!api) {
      wrong = api.error();
    } else {
      live->arrived = arrived;
      wrong = plan(&*api, session, live.get(), &answer);
    }
    if (wrong)
      return asio::post(io, [this, connection, error = std::move(*wrong)] {
        --parsing;
        connection->reply(error);
        end_if_done();
      });
    asio::post(io, [this, connection, api = std::move(*api), live = std::move(live), answer]() mutable {
      --parsing;
      admit(connection, std::move(api), std::move(live), answer);
    });
  });
}

// In the parsing thread. Decides the length and the content of the answer.
std::optional<ApiError> HttpServer::State::plan(ApiRequest* api, const std::string& session,
                                                LiveRequest* live, const TraceReply** answer) {
  if (!api->model.empty() && api->model != options_.model)
    return ApiError{.status = 404,
                    .message = fmt::format("the model '{}' does not exist; this server has '{}'", api->model,
                                           options_.model),
                    .param = "model",
                    .code = "model_not_found"};
  live->session = session.empty() ? api->user : session;
  if (trace != nullptr && !live->session.empty()) *answer = trace->next(live->session);
  const uint32_t prompt = api->prompt.count();
  const uint32_t room = options_.context_tokens_max == 0       ? UINT32_MAX
                        : options_.context_tokens_max > prompt ? options_.context_tokens_max - prompt
                                                               : 0;
  const uint32_t asked = api->max_tokens.value_or(1);
  const char* const prompt_field = api->chat ? "messages" : "prompt";
  if (room == 0)
    return ApiError{.message = fmt::format("this model's maximum context length is {} tokens, and the prompt "
                                           "has {}: no token can follow it",
                                           options_.context_tokens_max, prompt),
                    .param = prompt_field,
                    .code = "context_length_exceeded"};
  if (asked > room)
    return ApiError{
        .message = fmt::format("this model's maximum context length is {} tokens; the prompt has {} and "
                               "{} more are asked for",
                               options_.context_tokens_max, prompt, asked),
        .param = "max_tokens",
        .code = "context_length_exceeded"};
  const bool natural = *answer != nullptr && !api->ignore_eos;
  uint32_t output = natural           ? (*answer)->output_tokens
                    : api->max_tokens ? *api->max_tokens
                                      : options_.output_tokens_default;
  live->stops = natural || !api->max_tokens;
  output = std::max(output, api->min_tokens);
  const uint32_t most = std::min(api->max_tokens.value_or(room), room);
  live->stops = live->stops && output <= most;
  live->output_tokens = std::min(output, most);
  live->prompt = std::move(api->prompt);
  live->seed = live->prompt.hash();
  live->identity = identity_of(live->prompt, live->seed, live->output_tokens, options_.unit_tokens);
  return std::nullopt;
}

void HttpServer::State::admit(const std::shared_ptr<HttpConnection>& connection, ApiRequest api,
                              std::unique_ptr<LiveRequest> live, const TraceReply* answer) {
  const RequestId id{next_id++};
  live->id = id;
  ReplyFacts facts;
  facts.chat = api.chat;
  facts.include_usage = api.include_usage;
  facts.id = raw(id);
  facts.created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  facts.model = options_.model;
  facts.seed = live->seed;
  facts.prompt_tokens = live->prompt.count();
  facts.stops = live->stops;
  if (answer != nullptr) facts.tools = answer->tools;
  streams.emplace(raw(id), connection);
  client->submit(std::move(live));
  connection->start_reply(id, api.stream, Reply(std::move(facts)));
}

void HttpServer::State::reply_ended(RequestId request, ReplyEnd end, uint32_t whole_tokens) {
  if (!forget(request)) return;
  ++(end == ReplyEnd::kAnswered ? counts.answered : end == ReplyEnd::kRefused ? counts.refused : counts.cut);
  counts.tokens += whole_tokens;
  end_if_done();
}

void HttpServer::State::client_went_away(RequestId request) {
  client->cancel(request);
  if (!forget(request)) return;
  ++counts.cancelled;
  end_if_done();
}

// False if the request has been counted already: the server stops.
bool HttpServer::State::forget(RequestId request) { return streams.erase(raw(request)) > 0; }

void HttpServer::State::end_if_done() {
  if (is_stopping && streams.empty() && parsing == 0) end_stop();
}

void HttpServer::State::collect() {
  taken.clear();
  client->take_progress(&taken);
  due.insert(due.end(), taken.begin(), taken.end());
  send_due();
}

void HttpServer::State::send_due() {
  while (!due.empty() && clock.wall(due.front().at) <= std::chrono::steady_clock::now()) {
    const Progress progress = due.front();
    due.pop_front();
    const auto found = streams.find(raw(progress.request));
    if (found == streams.end()) continue;
    const std::shared_ptr<HttpConnection> connection = found->second;
    connection->take(progress);
  }
  if (!log_rows.empty()) write_log();
  if (due.empty()) return;
  due_timer.expires_at(clock.wall(due.front().at));
  due_timer.async_wait([this](Code error) {
    if (!error) send_due();
  });
}

void HttpServer::State::token_sent(RequestId request, uint32_t token, Instant at) {
  ++counts.tokens;
  if (log == nullptr) return;
  log_rows.push_back({request, token, at, std::chrono::steady_clock::now()});
}

// Outside of a burst of tokens.
void HttpServer::State::write_log() {
  if (log == nullptr) return;
  const auto ns = [](WallClock::TimePoint at) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
  };
  for (const SentToken& row : log_rows)
    fmt::print(log, "{},{},{},{},{}\n", raw(row.request), row.token, row.at.ns, ns(clock.wall(row.at)),
               ns(row.sent));
  log_rows.clear();
}

void HttpServer::State::sweep() {
  sweep_timer.expires_after(kSweep);
  sweep_timer.async_wait([this](Code error) {
    if (error) return;
    const auto since = std::chrono::steady_clock::now() - std::chrono::nanoseconds(options_.stall.ns);
    std::vector<std::shared_ptr<HttpConnection>> all;
    for (const auto& [key, weak] : connections) {
      if (auto connection = weak.lock()) all.push_back(std::move(connection));
    }
    for (const auto& connection : all) connection->close_if_stalled(since);
    write_log();  // of tokens that were sent when slow clients read
    sweep();
  });
}

void HttpServer::State::begin_stop() {
  if (std::exchange(is_stopping, true)) return;
  Code ignored;
  acceptor.close(ignored);
  std::vector<std::shared_ptr<HttpConnection>> all;
  for (const auto& [key, weak] : connections) {
    if (auto connection = weak.lock()) all.push_back(std::move(connection));
  }
  for (const auto& connection : all) connection->close_if_idle();
  if (streams.empty() && parsing == 0) return end_stop();
  grace_timer.expires_after(std::chrono::nanoseconds(options_.grace.ns));
  grace_timer.async_wait([this](Code error) {
    if (!error) end_stop();
  });
}

void HttpServer::State::end_stop() {
  if (std::exchange(ended, true)) return;
  is_stopping = true;
  const auto left = std::exchange(streams, {});
  counts.cut += left.size() + parsing;
  for (const auto& [id, connection] : left) {
    client->cancel(RequestId{id});
    connection->abandon();
  }
  write_log();
  client->stop();
  io.stop();
}

}  // namespace kvtwin::serve
