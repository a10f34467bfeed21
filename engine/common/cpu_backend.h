// CpuBackend is the backend that measures: it performs steps on an engine that computes, on a CPU or a GPU,
// and reports the time that they took (--clock=wall).
//
// A step is performed when it is due to start, and measured. Each engine has its own clock, as if it had a
// machine to itself: while one engine computes, the clocks of the others stand still. Idle gaps are skipped
// unless `sleep` is set: an agent's think time of a minute passes at once. Every single step is answered
// separately.
//
// Policy, client and driver run on the host of each engine, one event after the other, and delay what they
// submit (CpuBackendOptions::host_clock). For an event of instant t and an engine with d =
// steps_in_flight_max:
//   begun     = max(t, instant at which the engine's host had finished with the event before)
//   submitted = begun + host time since the event was delivered
//   start[n]  = max(end[n - 1], submitted[n]); with d == 1 a further step of a coalesced launch also waits
//               until the host has finished with the end of step n - 1
// With d == 2 that step is launched already. StepOutcome::host is how long a step waited for the host.

#ifndef KVTWIN_ENGINE_COMMON_CPU_BACKEND_H_
#define KVTWIN_ENGINE_COMMON_CPU_BACKEND_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/runtime/backend.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin::cpu {

struct CpuBackendOptions {
  std::vector<uint32_t> steps_in_flight_max;  // by engine
  bool sleep = false;                         // gaps pass in real time
  // For engines whose copies run concurrently with their steps and with copies in the other direction: waits
  // for a copy and returns its duration. Called once per copy, in order, after the step that ran concurrently
  // was performed. Null: a copy is complete when the engine's notify() returns.
  std::function<Duration(EngineId, TransferId)> copy_time{};
  // Called before each single step, outside the measured time.
  std::function<void(const LaunchStep&, uint32_t offset)> before_step{};
  // Reads the host's clock, of any zero. Null: policy, client and driver take no time.
  std::function<Instant()> host_clock{};
};

// Runs `work` and returns its duration. Tests supply their own.
using Stopwatch = std::function<Duration(const std::function<void()>& work)>;
Duration wall_time(const std::function<void()>& work);
Instant wall_clock();

class CpuBackend final : public Backend {
 public:
  // `engines` performs steps and copies of all engines, and must outlive this.
  CpuBackend(const CpuBackendOptions& options, OutcomeSource* engines, Stopwatch stopwatch = wall_time);
  ~CpuBackend() override;

  void submit(const Command& command) override;
  bool next(Instant* now, Event* event) override;
  bool interrupt(EngineId engine, Event* event) override;

 private:
  struct Launch;
  struct Engine;
  struct Copy {
    Instant at{};
    TransferDone done;
    bool timed = true;    // false: `at` is when it was submitted
    bool to_gpu = false;  // direction; used for copies with copy_time
  };
  struct Alarm {
    Instant at{};
    uint64_t order = 0;
    Timer timer;
  };

  void start(const StartTransfer& command, const Command& whole);
  void perform_next(Engine* engine);
  void time_copies();
  void answer(Engine* engine, Event* event);
  void cut(Engine* engine, uint32_t steps);
  void pass_time(Instant to);

  Instant host_now() const { return options_.host_clock ? options_.host_clock() : Instant{}; }
  Duration since_event() const { return delivered_ ? host_now() - *delivered_ : Duration{}; }
  void begin_handling(Engine* engine);
  void end_handling();
  Instant submitted_at(EngineId engine) const;
  Duration measure(const std::function<void()>& work);

  const CpuBackendOptions options_;
  OutcomeSource* const source_;
  const Stopwatch stopwatch_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Copy> copies_;
  std::vector<Alarm> alarms_;
  uint64_t alarms_set_ = 0;
  Instant now_{};
  // By the host's clock: when the last event was delivered, plus the time that engines have computed since.
  std::optional<Instant> delivered_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_CPU_BACKEND_H_
