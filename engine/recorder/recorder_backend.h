// RecordedBackend and RecordedClient answer as the log of a run recorded it.
//
// A step that is not in the log is never answered: the decisions then differ from the recorded ones, and the
// run ends early. The coalescing of the recorded run does not matter; the outcome of a coalesced run comes
// with its last step.

#ifndef KVTWIN_ENGINE_RECORDER_RECORDER_BACKEND_H_
#define KVTWIN_ENGINE_RECORDER_RECORDER_BACKEND_H_

#include <cstdint>
#include <deque>
#include <unordered_set>
#include <vector>

#include "engine/recorder/recorder_log.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/client.h"

namespace kvtwin {

class RecordedBackend : public Backend {
 public:
  // `log` must outlive this.
  explicit RecordedBackend(const Log* log);

  void submit(const Command& command) override;
  bool next(Instant* now, Event* event) override;
  bool interrupt(EngineId engine, Event* event) override;

 private:
  struct Launch {
    uint64_t step = 0;    // first step that is not answered
    uint64_t end = 0;     // one past its last step
    bool single = false;  // interrupted: the remaining steps are answered one by one
  };
  struct Transfer {
    uint64_t number = 0;
    Instant at{};
    bool failed = false;
  };
  struct Engine {
    std::deque<Launch> launches;
    std::vector<Transfer> transfers;  // in flight
    size_t next_coalesced = 0;        // first coalesced run whose last step is not answered
    uint32_t in_flight_max = 1;
    bool lost = false;  // decisions differ from the log: no further step is answered
  };
  struct SetTimerAt {
    Instant at{};
    uint64_t order = 0;
    Timer timer;
  };

  // The step whose end answers the oldest launch, in the log or beyond it; UINT64_MAX: there is none.
  uint64_t answer_step(const Engine& engine, const Log::Engine& log) const;
  void answer(uint16_t engine, uint64_t last, Event* event);
  static void cut(Engine* engine, uint64_t open);

  const Log& log_;
  std::vector<Engine> engines_;
  std::vector<SetTimerAt> timers_;
  uint64_t timers_set_ = 0;
  Instant now_{};
  std::vector<CompressionOutcome> retained_;  // of the last answer
};

class RecordedClient : public Client {
 public:
  explicit RecordedClient(const Log* log) : log_(*log) {}

  Instant wake_at() const override;
  void wake(Instant now, ClientEvents* events) override;
  void tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents* events) override;
  void request_finished(Instant now, RequestId request, uint32_t tokens, bool cancelled,
                        ClientEvents* events) override;
  void request_rejected(Instant now, RequestId request, ClientEvents* events) override;

 private:
  void tell(Instant now, bool from_wake, ClientEvents* events);

  const Log& log_;
  size_t next_ = 0;
  uint64_t answers_ = 0;
  std::unordered_set<uint32_t> ended_;  // used for membership only: its order has no effect
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_BACKEND_H_
