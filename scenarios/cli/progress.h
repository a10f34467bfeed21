// Progress on stderr for work that takes longer than a second: one rewritten line on a terminal, a line per
// 10 % elsewhere. No result contains the wall-clock time that this class reads.

#ifndef KVTWIN_SCENARIOS_CLI_PROGRESS_H_
#define KVTWIN_SCENARIOS_CLI_PROGRESS_H_

#include <chrono>
#include <cstdint>

#include "engine/runtime/driver.h"

namespace kvtwin {

class Progress : public Observer {
 public:
  explicit Progress(bool quiet);

  // Counts a session while the trace is read.
  void read_session();
  // Starts counting requests.
  void start_run(uint64_t requests);
  // Erases the rewritten line.
  void finish();

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;

  double seconds() const;  // since the start of reading, or of the run

 private:
  using Clock = std::chrono::steady_clock;
  bool due();
  void show(Instant now);

  const bool quiet_;
  const bool terminal_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_ + std::chrono::seconds(1);
  uint64_t sessions_ = 0;
  uint64_t requests_ = 0, requests_ended_ = 0, events_ = 0;
  uint64_t tenths_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_PROGRESS_H_
