// RecentLoad measures how much of the recent past a GPU spent on computing prompts.
//
// A GPU that computes prompts without a pause reaches its power limit and lowers its clock; one that mostly
// decodes does not. So the same chunk takes longer after other chunks (StepShape::chunk_load,
// measured_cost.h). Time in which a step waits for pages is no load, and kernels other than matrix products
// may count less (LoadQuarters). Not thread-safe. Integers only, so coalesced and single steps give the same
// values.

#ifndef KVTWIN_MODELS_COST_RECENT_LOAD_H_
#define KVTWIN_MODELS_COST_RECENT_LOAD_H_

#include <algorithm>
#include <cstdint>
#include <deque>

#include "models/cost/cost_model.h"

namespace kvtwin {

class RecentLoad {
 public:
  // Steps of fewer tokens leave arithmetic units idle and power to spare.
  static constexpr uint32_t kHeavyTokens = 256;
  static bool is_heavy(const StepShape& shape) {
    const auto heavy = [](const PassShape& pass) { return pass.tokens >= kHeavyTokens; };
    return (shape.tokens >= kHeavyTokens && !shape.chunks.empty()) ||
           std::any_of(shape.passes.begin(), shape.passes.end(), heavy);
  }

  // Times within a step that are no load, or less of one.
  struct Parts {
    Ticks waited = 0, attention = 0, added = 0;  // for pages; what methods add
  };

  // `window` 0: nothing is remembered, and fraction() is kSustainedLoad.
  explicit RecentLoad(Ticks window, const LoadQuarters& load = {}) : window_(window), load_(load) {}

  // A step of this shape ran from `begin` to `end`. REQUIRES: in order of time.
  void add(const StepShape& shape, Ticks begin, Ticks end, const Parts& parts) {
    if (window_ <= 0 || !is_heavy(shape)) return;
    end -= parts.waited + parts.attention * (4 - load_.attention) / 4 + parts.added * (4 - load_.added) / 4;
    if (end <= begin) return;
    spans_.push_back({begin, end});
    while (spans_.front().end <= end - window_) spans_.pop_front();
  }

  // The fraction of the window before `now` that was spent on prompts, in permille.
  uint32_t fraction(Ticks now) const {
    if (window_ <= 0) return kSustainedLoad;
    Ticks sum = 0;
    for (const Span& one : spans_)
      sum += std::max<Ticks>(0, std::min(one.end, now) - std::max(one.begin, now - window_));
    return static_cast<uint32_t>(
        std::min<Ticks>(1000, 1000 * (sum >> 10) / std::max<Ticks>(1, window_ >> 10)));
  }

  // The zero of the clock moves by `by`.
  void move_base(Ticks by) {
    for (Span& one : spans_) one.begin -= by, one.end -= by;
  }

 private:
  struct Span {
    Ticks begin = 0, end = 0;
  };
  Ticks window_;
  LoadQuarters load_;
  std::deque<Span> spans_;
};

// BusyPeriod measures how long a GPU has computed prompts without a pause in which its clock recovers.
class BusyPeriod {
 public:
  // `pause` 0: nothing is remembered, and periods are 0.
  explicit BusyPeriod(Ticks pause) : pause_(pause) {}

  // A step ran from `begin` to `end`. REQUIRES: in order of time.
  void add(const StepShape& shape, Ticks begin, Ticks end) {
    if (pause_ <= 0 || end <= begin || !RecentLoad::is_heavy(shape)) return;
    if (!known_ || begin - end_ >= pause_) begin_ = begin;
    end_ = end, known_ = true;
  }

  // The length of the busy period that a step at `now` would continue.
  uint32_t ms(Ticks now) const {
    if (!known_ || now - end_ >= pause_) return 0;
    return static_cast<uint32_t>((now - begin_) / kMs);
  }

  // Time since the last such step ended, and the length of the busy period at its end.
  uint32_t calm_ms(Ticks now) const {
    return known_ ? static_cast<uint32_t>(std::max<Ticks>(0, now - end_) / kMs) : kCalm;
  }
  uint32_t length_ms() const { return known_ ? static_cast<uint32_t>((end_ - begin_) / kMs) : 0; }

  // The zero of the clock moves by `by`.
  void move_base(Ticks by) { begin_ -= by, end_ -= by; }

 private:
  static constexpr Ticks kMs = kTicksPerNs * 1'000'000;
  Ticks pause_;
  bool known_ = false;
  Ticks begin_ = 0, end_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_RECENT_LOAD_H_
