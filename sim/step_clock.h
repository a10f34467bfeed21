// When do the steps of one engine end? StepClock prices launches with the cost model, step by step and
// no further than somebody looks, and answers them as backend.h says.
//
// Ends are sums in Ticks (1/1024 ns) that run on from launch to launch, and are rounded (down) to
// nanoseconds only when read. So a folded launch and the same steps launched one by one end at the same
// instants, whatever the pattern of folding and interruption.
//
// For step n of an engine with d = steps_in_flight_max:
//   submitted[n] = max(instant of its launch, end[n - d])        when the policy could plan it
//   end[n]       = max(end[n - 1], submitted[n]) + max(0, host[n] + device[n])
// host[n] is what calibration on a machine with the same d finds beside its kernel tables: time in which
// the device waits for the host, or less than nothing where the tables were measured launch by launch and
// the engine replays graphs. It is not hidden behind device time a second time.

#ifndef KVTWIN_SIM_STEP_CLOCK_H_
#define KVTWIN_SIM_STEP_CLOCK_H_

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/policy/commands.h"
#include "engine/policy/events.h"
#include "models/cost_model.h"

namespace kvtwin::sim {

// Of one engine, over the steps that were answered.
struct StepTotals {
  uint64_t steps = 0;
  Ticks host_exposed = 0;                           // the device waited for the host
  std::array<Ticks, kEvidenceKinds> by_evidence{};  // device time; sums to all of it
};

class StepClock {
 public:
  // REQUIRES: steps_in_flight_max is 1 or 2. `cost` must outlive this.
  // `first_step_host`: what the engine's very first step costs more (compilation, first use of kernels).
  StepClock(EngineId engine, CostModel* cost, uint32_t steps_in_flight_max, Duration first_step_host = {});

  void launch(Instant now, const LaunchStep& command);

  // The next answer is due at `at` when `known`, and not before `at` otherwise. Idle: kNever, known.
  struct Outlook {
    Instant at = kNever;
    bool known = true;
  };
  Outlook outlook() const;
  // Looks further ahead, until the next answer is known or lies beyond `limit`; at most kPriceBlock steps.
  void look_ahead(Instant limit);

  // The next answer. REQUIRES: outlook().known and not idle. Its spans are valid until the next call.
  StepDone take();
  // Backend::interrupt at `now`: true with the next piece of what has ended, false when there is none
  // and the rest was cut short.
  bool interrupt(Instant now, StepDone* ended);

  const StepTotals& totals() const { return totals_; }

 private:
  static constexpr uint32_t kPriceBlock = 64;
  static constexpr size_t kHistory = 2;  // answered steps that later ones still refer to

  struct Launch {
    StepId first{};       // of the steps not yet answered
    uint32_t steps = 0;   // not yet answered
    uint32_t priced = 0;  // of these
    Ticks submitted = 0;
    bool one_by_one = false;  // interrupted
    StepShape shape;          // of the next step to be priced; its chunks are `chunks`
    std::vector<ChunkShape> chunks;
    uint32_t growing = 0;      // entries that read one more cell in each step of a stretch
    uint32_t growing_max = 0;  // the longest of them, in the next step to be priced
  };
  // Times since base_. The last two are sums over all steps so far, so that stretches can be subtracted.
  struct Priced {
    Ticks end = 0;
    Ticks host_exposed = 0;
    std::array<Ticks, kEvidenceKinds> by_evidence{};
  };

  bool price_next();  // false when every launched step is priced
  uint32_t answer_steps() const;
  StepDone answer(uint32_t steps);
  void forget_answered();
  void move_base(Instant now);
  Instant instant_of(Ticks ticks) const;
  size_t unanswered_priced() const { return priced_.size() - head_; }

  const EngineId engine_;
  CostModel* const cost_;
  const uint32_t in_flight_max_;
  const Ticks first_step_host_;
  bool started_ = false;
  Instant base_{};
  std::deque<Launch> launches_;
  std::vector<Priced> priced_;  // [0, head_) answered, at least kHistory of them; then the unanswered
  size_t head_ = kHistory;
  std::vector<Instant> ends_;  // of the last answer
  StepTotals totals_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_STEP_CLOCK_H_
