// Recorder is an Observer that writes the log of a run: every event with its instant, and fingerprints of the
// decisions. Together with the CoreConfigs these are the whole input of the policy, so a log replays to the
// same digest without the backend that produced it (recorder_replay.h).
//
// The log is independent of how the backend coalesced its steps: coalesced and single-step runs give equal
// bytes. Therefore it consists of tables (schema: traces/proto/run.proto), steps are grouped into runs that
// follow from the decisions alone, and outcomes are summed over such a run.

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

  // Returns the Client to run with instead of `client`. It forwards everything and records the events that
  // come back. Client events are recorded here and not in saw_event(), because a replay must know the answer
  // that caused them.
  Client* watch(Client* client);

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;
  void saw_state(Instant now, EngineId engine, const Core& core) override;

  // The whole log. To be called when the run has ended.
  std::string finish(const RunEnd& end);

 private:
  class Watch;
  struct Engine;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_H_
