#include "scenarios/load/external_process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "kernels/scoring/score.h"
#include "models/files/npz.h"

namespace kvtwin {
namespace {

constexpr size_t kPrologue = 10;  // magic, version, and the header's length

// Version 1.0 of the format: the header is Python text, padded so that data start at a multiple of 64.
std::string npy_header(std::string_view type, std::span<const uint32_t> shape) {
  std::string sizes;
  for (const uint32_t size : shape) sizes += fmt::format("{}, ", size);
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, sizes);
  text.append(63 - (kPrologue + text.size()) % 64, ' ');
  text += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(text.size() & 0xff);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

template <typename T>
void append(std::string* out, const T* values, size_t count) {
  out->append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

void append_heads(const kernels::HeadsView& view, std::string* out) {
  const uint32_t shape[] = {view.heads, view.rows, view.dim};
  *out += npy_header("<f4", shape);
  for (uint32_t h = 0; h < view.heads; ++h) {
    for (uint32_t i = 0; i < view.rows; ++i) append(out, view.row(h, i), view.dim);
  }
}

std::string question(const kernels::ScoreInputs& in) {
  std::string out = npy_header("<i8", {});
  const int64_t layer = in.layer;
  append(&out, &layer, 1);
  const uint32_t shape[] = {in.k.heads, in.k.rows};
  out += npy_header("<i8", shape);
  for (uint32_t h = 0; h < in.k.heads; ++h) {
    for (uint32_t i = 0; i < in.k.rows; ++i) {
      const int64_t position = in.positions.at(h, i);
      append(&out, &position, 1);
    }
  }
  append_heads(in.k, &out);
  append_heads(in.v, &out);
  append_heads(in.q, &out);
  return out;
}

class ExternalProcess final : public kernels::ExternalScorer {
 public:
  explicit ExternalProcess(std::string command) : command_(std::move(command)) {}
  ExternalProcess(const ExternalProcess&) = delete;
  ExternalProcess& operator=(const ExternalProcess&) = delete;
  ~ExternalProcess() override { stop(); }

  void score(const kernels::ScoreInputs& in, kernels::ScoreView out) override {
    if (pid_ < 0) start();
    write_all(question(in));
    const NpyArray answer = read_array();
    if (answer.shape != std::vector<uint64_t>{out.heads, out.rows}) {
      fail(fmt::format("it answered with an array of shape [{}], not [{}, {}]: a score per KV head and entry",
                       fmt::join(answer.shape, ", "), out.heads, out.rows));
    }
    for (uint32_t h = 0; h < out.heads; ++h) {
      for (uint32_t i = 0; i < out.rows; ++i) {
        const double score = answer.values[size_t{h} * out.rows + i];
        if (std::isnan(score)) fail(fmt::format("the score of head {}, entry {} is no number", h, i));
        out.row(h)[i] = static_cast<float>(score);
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(fmt::format("policies.scorer_options.command \"{}\": {}", command_, what));
  }

  [[noreturn]] void fail_too_large() const {
    fail(fmt::format("its answer is larger than {} MB", kNpzMemberBytesMax >> 20));
  }

  // A pair of sockets instead of pipes, so that writing to a program that has ended is an error, not a
  // signal.
  void start() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      fail(fmt::format("no socket for it: {}", std::strerror(errno)));
    pid_ = fork();
    if (pid_ == 0) {  // between fork and exec: no locks, no memory
      dup2(ends[1], STDIN_FILENO);
      dup2(ends[1], STDOUT_FILENO);
      execl("/bin/sh", "sh", "-c", command_.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(ends[1]);
    if (pid_ < 0) {
      close(ends[0]);
      fail(fmt::format("it cannot be started: {}", std::strerror(errno)));
    }
    socket_ = ends[0];
  }

  void stop() {
    if (pid_ < 0) return;
    close(socket_);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

  // A program may answer before it has read everything. What it writes is received meanwhile: otherwise it
  // would wait for this process, and this process for it.
  void write_all(std::string_view bytes) {
    while (!bytes.empty()) {
      pollfd ready{socket_, POLLIN | POLLOUT, 0};
      if (poll(&ready, 1, -1) < 0) continue;  // a signal
      if ((ready.revents & POLLIN) != 0 && !receive()) fail("it ended before all arrays were read");
      const ssize_t done = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (done < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (done <= 0) fail(fmt::format("it ended before all arrays were read: {}", std::strerror(errno)));
      bytes.remove_prefix(static_cast<size_t>(done));
    }
  }

  // Waits for what the program writes next; false: it has ended.
  bool receive() {
    char bytes[1 << 16];
    ssize_t done = 0;
    do {
      done = read(socket_, bytes, sizeof bytes);
    } while (done < 0 && errno == EINTR);
    if (done <= 0) return false;
    received_.append(bytes, static_cast<size_t>(done));
    if (received_.size() > kNpzMemberBytesMax + (size_t{1} << 17)) fail_too_large();
    return true;
  }

  void read_more(size_t count, std::string* to) {
    while (received_.size() < count) {
      if (!receive()) fail("it ended without an answer");
    }
    to->append(received_, 0, count);
    received_.erase(0, count);
  }

  NpyArray read_array() {
    std::string bytes;
    read_more(kPrologue, &bytes);
    if (!bytes.starts_with("\x93NUMPY\x01")) fail("its answer is no array of .npy format, version 1");
    const auto low = static_cast<unsigned char>(bytes[8]), high = static_cast<unsigned char>(bytes[9]);
    read_more(low + 256u * high, &bytes);
    read_more(payload_bytes(bytes), &bytes);
    Result<NpyArray> array = parse_npy(bytes, "its answer");
    if (!array) fail(array.error().text());
    return std::move(*array);
  }

  // Of an array whose header this is; parse_npy() checks the rest of it.
  size_t payload_bytes(const std::string& header) const {
    const size_t begin = header.find('('), end = header.find(')');
    const size_t item = header.find("<f4") != std::string::npos   ? 4
                        : header.find("<f8") != std::string::npos ? 8
                                                                  : 0;
    if (begin == std::string::npos || end == std::string::npos || item == 0)
      fail("its answer is no array of float32 or float64 (\"<f4\", \"<f8\")");
    uint64_t count = 1, size = 0;
    bool in_number = false;
    for (size_t i = begin + 1; i <= end; ++i) {
      if (header[i] >= '0' && header[i] <= '9') {
        size = size * 10 + static_cast<uint64_t>(header[i] - '0'), in_number = true;
      } else if (in_number) {
        count *= size, size = 0, in_number = false;
      }
      if (size > kNpzMemberBytesMax || count * item > kNpzMemberBytesMax) fail_too_large();
    }
    return count * item;
  }

  const std::string command_;
  pid_t pid_ = -1;
  int socket_ = -1;
  std::string received_;  // and not yet read as a part of an answer
};

}  // namespace

std::shared_ptr<kernels::ExternalScorer> external_process(std::string command) {
  return std::make_shared<ExternalProcess>(std::move(command));
}

}  // namespace kvtwin
