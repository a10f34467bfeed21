// WallClock maps the simulation's instants to the wall clock: instant 0 is when the server started, and
// `speed` simulated seconds pass in one second.

#ifndef KVTWIN_SCENARIOS_SERVE_WALL_CLOCK_H_
#define KVTWIN_SCENARIOS_SERVE_WALL_CLOCK_H_

#include <chrono>
#include <cmath>

#include "engine/base/units.h"

namespace kvtwin::serve {

class WallClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // REQUIRES: speed > 0.
  explicit WallClock(double speed) : origin_(std::chrono::steady_clock::now()), speed_(speed) {}

  Instant simulated(TimePoint at) const {
    const std::chrono::duration<double, std::nano> since = at - origin_;
    return {std::llround(since.count() * speed_)};
  }
  Instant now() const { return simulated(std::chrono::steady_clock::now()); }
  TimePoint wall(Instant at) const {
    return origin_ + std::chrono::nanoseconds(std::llround(static_cast<double>(at.ns) / speed_));
  }
  double speed() const { return speed_; }

 private:
  TimePoint origin_;
  double speed_;
};

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_WALL_CLOCK_H_
