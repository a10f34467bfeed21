// ArrivalSchedule determines which session starts when (docs/design/trace-formats.md#replay, "Session
// arrivals").
//
// An instance is a session of a replica: replica x sessions + index in the file. Instances of equal instants
// start in that order. A fixed population has no instants of its own: session_ended() makes the next one due.

#ifndef KVTWIN_TRACES_REPLAY_REPLAY_ARRIVALS_H_
#define KVTWIN_TRACES_REPLAY_REPLAY_ARRIVALS_H_

#include <vector>

#include "traces/replay/replay_options.h"
#include "traces/replay/replay_table.h"

namespace kvtwin {

class ArrivalSchedule {
 public:
  ArrivalSchedule(const ReplayTable& table, const ReplayOptions& options);

  // When the next session starts. kNever: none is left, or none starts before a session ends.
  Instant next_at() const { return next_ < arrivals_.size() ? Instant{arrivals_[next_].at} : kNever; }
  // That session. REQUIRES: next_at() != kNever.
  uint32_t take() { return arrivals_[next_++].instance; }
  void session_ended(Instant now);

 private:
  struct Arrival {
    int64_t at;
    uint32_t instance;
  };
  std::vector<Arrival> arrivals_;  // ascending
  size_t next_ = 0;
  uint32_t waiting_ = 0;  // fixed population: the first instance that is not scheduled yet
  uint32_t instances_ = 0;
};

// -ln(word / 2^64) in Q32, for word > 0: an exponential draw in integers, independent of libm.
uint64_t exponential_q32(uint64_t word);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_REPLAY_ARRIVALS_H_
