// Finds where two runs of one scenario diverge: the first single step whose batch differs, and the state of
// both sides when they planned it. Logs hold no batches: both are replayed, so both show the policy's own
// state.

#ifndef KVTWIN_SCENARIOS_VALIDATE_DIVERGENCE_H_
#define KVTWIN_SCENARIOS_VALIDATE_DIVERGENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/recorder/recorder_log.h"

namespace kvtwin {

// Records the launches of a replay by engine, in order.
class LaunchHistory final : public Observer {
 public:
  struct Launch {
    uint64_t step = 0;    // its first single step
    uint32_t repeat = 1;  // single steps; if cut short, the next launch repeats the numbers of the rest
    Instant at{};
    std::vector<PlanEntry> entries;
    size_t compressions = 0;
    CoreGauges gauges;       // after the decision
    uint64_t done = 0;       // requests that have ended
    uint64_t transfers = 0;  // transfers that have been requested
    uint64_t preempted = 0;  // requests that have lost their pages
  };

  explicit LaunchHistory(size_t engines) : engines_(engines) {}
  void saw_command(Instant now, const Command& command) override;
  void saw_state(Instant now, EngineId engine, const Core& core) override;

  const std::vector<Launch>& of(size_t engine) const { return engines_[engine].launches; }
  size_t engines() const { return engines_.size(); }

 private:
  struct Engine {
    std::vector<Launch> launches;
    size_t without_state = 0;  // the first launch whose gauges are not known yet
    uint64_t done = 0, transfers = 0, preempted = 0;
  };
  std::vector<Engine> engines_;
};

// Returns "" if no step differs, else several lines: the step and both sides' batches and states. `one` and
// `other` name the runs. Of the engines that diverge, the one whose launch in run `a` is earliest is
// reported.
std::string first_divergence(const LaunchHistory& a, const std::string& one, const LaunchHistory& b,
                             const std::string& other);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_DIVERGENCE_H_
