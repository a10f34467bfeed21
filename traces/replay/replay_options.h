// Options of a replay (docs/design/trace-formats.md#replay). Plain data: scenarios/ fills it, validate()
// checks it.

#ifndef KVTWIN_TRACES_REPLAY_REPLAY_OPTIONS_H_
#define KVTWIN_TRACES_REPLAY_REPLAY_OPTIONS_H_

#include <cstdint>

#include "engine/base/front_end.h"
#include "engine/base/result.h"
#include "engine/base/units.h"

namespace kvtwin {

// num/den. Scales are ratios and not doubles, so that a release does not depend on the compiler.
struct Ratio {
  int64_t num = 1;
  int64_t den = 1;
};

enum class ReplayMode : uint8_t {
  kAuto,         // closed loop where the trace has dependencies or no request times, else open loop
  kClosedLoop,   // a request waits for its dependencies, as they complete here
  kOpenLoop,     // every request at its recorded time x arrival_scale, whatever has completed
  kGuardedOpen,  // at the later of that time and the end of its dependencies
};

enum class ArrivalMode : uint8_t {
  kRecorded,         // Session.arrival_at_ns x arrival_scale
  kPoisson,          // independent exponential gaps, sessions in file order
  kFixedPopulation,  // `population` sessions at once; the next in file order starts when one ends
  kAllAtOnce,        // every session at 0
};

enum class RejectPolicy : uint8_t {
  kFailSession,  // dependents of the request are cancelled; other nodes continue
  kSkipRequest,  // the session continues without the output (a recorded compaction may fit again)
  kRetry,        // again after a seeded backoff, up to retries_max times, then kFailSession
};

struct ReplayOptions {
  uint32_t page_tokens = 16;
  ReplayMode mode = ReplayMode::kAuto;
  ArrivalMode arrivals = ArrivalMode::kRecorded;
  Ratio arrivals_per_s;           // kPoisson
  uint32_t population = 1;        // kFixedPopulation
  uint64_t seed = 42;             // seed of everything that is drawn here
  Ratio arrival_scale;            // of recorded times; 1/2: twice as fast
  Ratio tool_scale;               // of tools and opaque agents
  Ratio think_scale;              // of LlmRequest.think_ns
  Ratio delay_scale;              // of Dep.delay_ns
  Duration think_cap{INT64_MAX};  // after scaling; see replay.h
  uint32_t replicas = 1;          // clones with re-salted identities
  uint64_t sessions_max = 0;      // only the first sessions of the file; 0: all
  uint64_t requests_max = 0;      // only the first requests of the file; 0: all
  bool hints = false;  // announces after each request whether and when the session's next one is expected
  FrontEnd front_end;  // a released request reaches the engine that much later
  RejectPolicy on_reject = RejectPolicy::kFailSession;
  uint32_t retries_max = 3;
  Duration retry_backoff{1'000'000'000};  // doubles with each attempt; drawn from [1/2, 1] of that
};

Result<void> validate(const ReplayOptions& options);

// Instants and durations saturate here (73 years), so that sums of two cannot overflow.
constexpr int64_t kReplayTimeMax = INT64_MAX / 4;

constexpr int64_t scaled(int64_t ns, Ratio by) {
  const __int128 exact = static_cast<__int128>(ns) * by.num / by.den;
  return exact > kReplayTimeMax    ? kReplayTimeMax
         : exact < -kReplayTimeMax ? -kReplayTimeMax
                                   : static_cast<int64_t>(exact);
}

// REQUIRES: both within +-kReplayTimeMax.
constexpr int64_t later(int64_t at, int64_t by) {
  return at + by > kReplayTimeMax ? kReplayTimeMax : at + by;
}

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_REPLAY_OPTIONS_H_
