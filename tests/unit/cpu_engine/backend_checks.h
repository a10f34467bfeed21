// Checks shared by tests of whole runs on real data: drawn times, and logs that replay.

#ifndef KVTWIN_TESTS_UNIT_CPU_ENGINE_BACKEND_CHECKS_H_
#define KVTWIN_TESTS_UNIT_CPU_ENGINE_BACKEND_CHECKS_H_

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "engine/base/prng.h"
#include "engine/common/cpu_backend.h"
#include "engine/recorder/recorder_replay.h"

namespace kvtwin::testing {

// Steps and copies take drawn times, so that a failure can be repeated.
inline cpu::Stopwatch drawn_times(uint64_t seed) {
  return [seed, n = uint64_t{0}](const std::function<void()>& work) mutable {
    work();
    return Duration{static_cast<int64_t>(draw({seed, ++n}) % 1000)};
  };
}

// A host's clock that moves by drawn times whenever it is read.
inline std::function<Instant()> drawn_clock(uint64_t seed) {
  return [seed, n = uint64_t{0}, now = Instant{}]() mutable {
    return now = now + Duration{static_cast<int64_t>(draw({seed, ~++n}) % 300)};
  };
}

// Checks that the log in `bytes` replays to `digest`.
inline void check_replays(const std::string& bytes, uint64_t digest) {
  const Result<Log> log = read_log("log", bytes);
  REQUIRE(log);
  const Result<Replayed> replayed = replay("log", *log, {});
  REQUIRE(replayed);
  CHECK(replayed->same);
  CHECK(replayed->end.digest == digest);
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_ENGINE_BACKEND_CHECKS_H_
