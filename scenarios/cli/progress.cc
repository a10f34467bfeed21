#include "scenarios/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "scenarios/output/summary.h"

namespace kvtwin {

Progress::Progress(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

bool Progress::due() {
  if (quiet_ || Clock::now() < next_) return false;
  next_ = Clock::now() + std::chrono::milliseconds(terminal_ ? 200 : 5000);
  return true;
}

void Progress::read_session() {
  if (++sessions_ % 64 != 0 || !due()) return;
  fmt::print(stderr, "{}reading the trace: {} sessions, {:.1f} s{}", terminal_ ? "\r\033[K" : "",
             grouped(sessions_), seconds(), terminal_ ? "" : "\n");
  shown_ = true;
}

void Progress::start_run(uint64_t requests) {
  finish();
  requests_ = requests;
  start_ = Clock::now();
  next_ = start_ + std::chrono::seconds(1);
}

void Progress::finish() {
  if (shown_ && terminal_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

void Progress::saw_event(Instant now, EngineId, const Event&) {
  if ((++events_ & 0x3ff) == 0) show(now);
}

void Progress::saw_command(Instant, const Command& command) {
  if (std::holds_alternative<FinishRequest>(command) || std::holds_alternative<RejectRequest>(command))
    ++requests_ended_;
}

void Progress::show(Instant now) {
  if (!due()) return;
  const uint64_t tenths = requests_ == 0 ? 0 : 10 * requests_ended_ / requests_;
  if (!terminal_ && shown_ && tenths == tenths_) return;
  tenths_ = tenths;
  const double spent = seconds();
  const double left = requests_ended_ == 0 ? 0
                                           : spent * static_cast<double>(requests_ - requests_ended_) /
                                                 static_cast<double>(requests_ended_);
  fmt::print(stderr, "{}{} of {} requests, {:.0f} s simulated in {:.1f} s, about {:.0f} s left{}",
             terminal_ ? "\r\033[K" : "", grouped(requests_ended_), grouped(requests_),
             static_cast<double>(now.ns) / 1e9, spent, left, terminal_ ? "" : "\n");
  shown_ = true;
}

}  // namespace kvtwin
