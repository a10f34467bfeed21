// The real backend of engines that compute, on a CPU or a GPU: steps take as long as they take
// (--clock=wall).
//
// Steps are performed when they are due to start, and measured. Each engine's time is its own, as if each had
// a machine to itself: while one engine computes, the others' clocks wait for it, not their steps. Gaps in
// which nothing happens are skipped unless `sleep` asks for them: an agent that thinks for a minute is told
// that a minute has passed. Every single step is answered apart.

#ifndef KVTWIN_ENGINE_COMMON_CPU_BACKEND_H_
#define KVTWIN_ENGINE_COMMON_CPU_BACKEND_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/runtime/backend.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin::cpu {

struct CpuBackendOptions {
  std::vector<uint32_t> steps_in_flight_max;  // by engine
  bool sleep = false;                         // gaps pass in real time
  // Engines whose copies go on beside their steps, and beside copies in the other direction: waits for one,
  // and says how long it took. Asked once per copy, in order, after the step beside it was performed. Null: a
  // copy is done when it was told.
  std::function<Duration(EngineId, TransferId)> copy_time{};
  // Called before each single step, outside of what is measured.
  std::function<void(const LaunchStep&, uint32_t offset)> before_step{};
};

// Time that a piece of work took. Tests bring their own.
using Stopwatch = std::function<Duration(const std::function<void()>& work)>;
Duration wall_time(const std::function<void()>& work);

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
    bool timed = true;    // else `at` is when it was asked for
    bool to_gpu = false;  // meant for copies that are timed apart
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

  const CpuBackendOptions options_;
  OutcomeSource* const source_;
  const Stopwatch stopwatch_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Copy> copies_;
  std::vector<Alarm> alarms_;
  uint64_t alarms_set_ = 0;
  Instant now_{};
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_CPU_BACKEND_H_
