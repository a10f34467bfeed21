// Recorder writes down what a run was told: every event with its instant, and fingerprints of what was
// decided. Together with the CoreConfigs that is the whole input of the policy, so a log replays to the
// same digest with neither backend (recorder_replay.h).
//
// The log does not show how the backend coalesced its steps: coalesced and single-step runs give equal bytes.
// Therefore it is kept as tables (schema: traces/proto/run.proto), steps are grouped into *stretches*
// that follow from the decisions alone, and outcomes are summed over a run of coalesced steps.

#ifndef KVTWIN_ENGINE_RECORDER_RECORDER_H_
#define KVTWIN_ENGINE_RECORDER_RECORDER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engine/runtime/driver.h"

namespace kvtwin {

struct RecordedAbout {
  std::string scenario;  // its name
  uint64_t seed = 0;
};

class Recorder : public Observer {
 public:
  Recorder(const RunOptions& options, const RecordedAbout& about);
  ~Recorder() override;

  // The Client to run with instead of `client`: hands everything on and notes what comes back. Client
  // events are taken here and not from saw_event(), because a replay must know which answer caused them.
  Client* watch(Client* client);

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;
  void saw_state(Instant now, EngineId engine, const Core& core) override;

  // The whole log, once the run has ended.
  std::string finish(const RunEnd& end);

 private:
  class Watch;
  struct Engine;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_H_
