// Load on kvtwin serve from one thread: STREAMS streams at once, each of TOKENS tokens, ROUNDS times. They
// start within two seconds.
//
//   serve_load PORT STREAMS TOKENS ROUNDS OUT.csv
//
// A row of OUT.csv is one token: the request's id, the token's number and when it was received, in
// nanoseconds of CLOCK_MONOTONIC. tests/bench/serve_load.py runs it with a server and compares the two
// sides' times.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int64_t kRampNs = 2'000'000'000;  // over which the streams start

struct Stream {
  int socket = -1;
  uint32_t rounds = 0;  // to come, the current one included
  uint32_t tokens = 0;  // received of the current one
  std::string rest;     // an event that is not complete
};

struct Row {
  uint32_t request, token;
  int64_t at_ns;
};

int64_t now_ns() {
  timespec at{};
  clock_gettime(CLOCK_MONOTONIC, &at);
  return int64_t{at.tv_sec} * 1'000'000'000 + at.tv_nsec;
}

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(3);
}

class Load {
 public:
  Load(uint16_t port, uint32_t streams, uint32_t tokens, uint32_t rounds)
      : port_(port), tokens_(tokens), rounds_(rounds), streams_(streams) {}

  void run() {
    epoll_ = epoll_create1(0);
    open_ = static_cast<uint32_t>(streams_.size());
    const int64_t began = now_ns();
    uint32_t started = 0;
    std::array<epoll_event, 256> events{};
    while (open_ > 0) {
      for (; started < streams_.size() && now_ns() - began >= kRampNs / int64_t(streams_.size()) * started;
           ++started) {
        connect(started);
        send(started);
      }
      const int wait_ms = started < streams_.size() ? 1 : 60'000;
      const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), wait_ms);
      if (count == 0 && wait_ms > 1) give_up("nothing was received for a minute");
      for (int i = 0; i < count; ++i) receive(events[static_cast<size_t>(i)].data.u32);
    }
  }
  const std::vector<Row>& rows() const { return rows_; }

 private:
  void connect(uint32_t index) {
    Stream& stream = streams_[index];
    stream.rounds = rounds_;
    stream.socket = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(stream.socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      give_up("connect");
    const int yes = 1;
    setsockopt(stream.socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = index;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, stream.socket, &event) != 0) give_up("epoll_ctl");
  }

  void send(uint32_t index) {
    const std::string body = "{\"prompt\":[" + std::to_string(index) +
                             ",2,3,4,5,6,7,8],\"stream\":true,\"max_tokens\":" + std::to_string(tokens_) +
                             "}";
    const std::string request =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    if (::send(streams_[index].socket, request.data(), request.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request.size()))
      give_up("send");
  }

  void receive(uint32_t index) {
    Stream& stream = streams_[index];
    const ssize_t got = recv(stream.socket, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) give_up("recv");
    const int64_t at = now_ns();
    stream.rest.append(buffer_.data(), static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = stream.rest.find("\n\n", begin)) != std::string::npos; begin = end + 2)
      take(index, std::string_view(stream.rest).substr(begin, end - begin), at);
    stream.rest.erase(0, begin);
  }

  void take(uint32_t index, std::string_view event, int64_t at) {
    Stream& stream = streams_[index];
    if (event.find("data: [DONE]") != std::string_view::npos) {
      if (stream.tokens != tokens_) give_up("a stream has another number of tokens");
      stream.tokens = 0;
      if (--stream.rounds > 0) return send(index);
      epoll_ctl(epoll_, EPOLL_CTL_DEL, stream.socket, nullptr);
      close(stream.socket);
      --open_;
      return;
    }
    const size_t id = event.find("\"cmpl-");
    if (id == std::string_view::npos) give_up("not an event of a completion");
    if (event.find("\"finish_reason\":null") == std::string_view::npos) return;
    const std::string hex(event.substr(id + 6, 8));
    rows_.push_back({static_cast<uint32_t>(std::strtoul(hex.c_str(), nullptr, 16)), ++stream.tokens, at});
  }

  const uint16_t port_;
  const uint32_t tokens_, rounds_;
  std::vector<Stream> streams_;
  std::vector<Row> rows_;
  std::array<char, 65'536> buffer_{};
  int epoll_ = -1;
  uint32_t open_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "serve_load PORT STREAMS TOKENS ROUNDS OUT.csv\n");
    return 2;
  }
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const auto number = [&](int index) {
    return static_cast<uint32_t>(std::strtoul(argv[index], nullptr, 10));
  };
  Load load(static_cast<uint16_t>(number(1)), number(2), number(3), number(4));
  load.run();
  std::FILE* const out = std::fopen(argv[5], "w");
  if (out == nullptr) give_up(argv[5]);
  std::fprintf(out, "request,token,received_ns\n");
  for (const Row& row : load.rows())
    std::fprintf(out, "%u,%u,%lld\n", row.request, row.token, static_cast<long long>(row.at_ns));
  return std::fclose(out) == 0 ? 0 : 3;
}
