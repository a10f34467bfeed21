// Log is a recorded run in memory. read_log() checks it, so that replaying it is safe whatever bytes it was
// read from.

#ifndef KVTWIN_ENGINE_RECORDER_RECORDER_LOG_H_
#define KVTWIN_ENGINE_RECORDER_RECORDER_LOG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/runtime/driver.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

struct RecordedAbout;

// A log with more engines is rejected as damaged.
constexpr uint32_t kRecordedEnginesMax = 4096;

struct Log {
  struct ClientStep {
    Instant at{};
    uint64_t answers = 0;
    bool from_wake = false;
    Event event;  // RequestReady's spans point into the following vectors
    std::vector<UnitRun> runs;
    std::vector<uint32_t> triggers;
    std::vector<RoleRun> roles;
  };
  struct Retained {
    RequestId request{};
    std::vector<uint32_t> counts;
    std::vector<uint64_t> live;
  };
  struct CoalescedSteps {
    uint64_t step = 0;  // its last step carries the outcome
    uint64_t steps = 0;
    uint32_t plan = 0;
    StepOutcome outcome;
    std::vector<RequestId> eos;
    std::vector<Retained> retained;
  };
  struct Transfer {
    uint64_t number = 0;
    Instant at{};
    bool failed = false;
  };
  struct Checkpoint {
    uint64_t steps = 0;
    uint64_t outside = 0;
    Instant at{};
    uint64_t digest = 0;
  };
  struct Engine {
    std::vector<Instant> ends;                   // by step
    std::vector<CoalescedSteps> coalesced_runs;  // ascending, without gaps
    std::vector<Transfer> transfers;             // ascending
    std::vector<Checkpoint> checkpoints;         // in order
  };

  std::string scenario;
  uint64_t seed = 0;
  RunOptions options;  // make_axes is null: a log names its policies
  std::vector<ClientStep> client;
  std::vector<Engine> engines;
  uint64_t digest = 0;
  Instant ended_at{};
};

v1::LogHeader log_header(const RunOptions& options, const RecordedAbout& about);

// `name` is for messages. Fails unless `bytes` is a complete, consistent log.
Result<Log> read_log(const std::string& name, std::string_view bytes);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_LOG_H_
