// LiveClient is the Client of a server: it sends the requests that arrive over the network, at the wall
// clock's pace, and reports when each output token exists.
//
// While requests run, the simulation wakes it every tick (a millisecond of the wall clock). It then waits
// until the wall clock has reached the simulation's, and sends what has arrived since. The simulation is thus
// at most one tick ahead, and a request reaches its engine at the first tick after its arrival and the time
// of its front end. When no request runs, it waits for the next one, and the simulation continues at that
// instant.
//
// The simulation's thread calls the members of Client and Observer; submit(), cancel(), stop() and
// take_progress() may be called by another thread.

#ifndef KVTWIN_SCENARIOS_SERVE_LIVE_CLIENT_H_
#define KVTWIN_SCENARIOS_SERVE_LIVE_CLIENT_H_

#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/front_end.h"
#include "engine/runtime/client.h"
#include "engine/runtime/driver.h"
#include "scenarios/serve/derived_sessions.h"
#include "scenarios/serve/prompt_tokens.h"
#include "scenarios/serve/wall_clock.h"

namespace kvtwin::serve {

// The tick, in wall-clock time.
constexpr Duration kTick{1'000'000};
// Named sessions that are remembered; beyond, the one that has been idle longest ends.
constexpr size_t kSessionsMax = 100'000;

struct LiveRequest {
  RequestId id{};
  std::string session;  // "": the client names none
  PromptTokens prompt;
  uint64_t seed = 0;  // of the generated text
  uint32_t output_tokens = 0;
  bool stops = false;  // ends by itself; else at the client's limit
  std::vector<UnitRun> identity;
  Instant arrived{};
  // Filled in by LiveClient.
  SessionId session_id{};
  uint32_t index = 0;
  EngineId engine{};           // that admitted it
  uint32_t cached_tokens = 0;  // of the prompt, when it was admitted first
  bool admitted = false, cancelling = false;
};

// Progress is one report of the simulation about a request. kToken: `tokens` output tokens exist at `at`.
struct Progress {
  enum class Kind : uint8_t { kToken, kFinished, kCancelled, kRejected };
  RequestId request{};
  Kind kind{};
  uint32_t tokens = 0;
  uint32_t cached_tokens = 0;
  Instant at{};
  EngineId engine{};  // that computed the prompt
};

class LiveClient final : public Client, public Observer {
 public:
  struct Options {
    bool roles = false;              // the precision policy reads the tokens' roles
    bool spans = false;              // the scorer reads what prompts ask
    uint32_t output_tokens_max = 0;  // of any request
    FrontEnd front_end{};            // between a request's arrival and its engine
  };
  // `notify` is called, in the simulation's thread, when progress is there to be taken; not again before
  // take_progress(). `clock` must outlive this.
  LiveClient(const WallClock& clock, const Options& options, std::function<void()> notify);

  // REQUIRES: ids are new, and ascend from 0.
  void submit(std::unique_ptr<LiveRequest> request);
  void cancel(RequestId request);
  // Cancels all running requests and ends the simulation.
  void stop();
  void take_progress(std::vector<Progress>* progress);
  // How far the simulation was behind the wall clock at the last tick, in wall-clock time.
  Duration lag() const;

  // Null if it does not run. In the simulation's thread.
  const LiveRequest* find(RequestId request) const;

  Instant wake_at() const override { return wake_at_; }
  void wake(Instant now, ClientEvents* events) override;
  void tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents* events) override;
  void request_finished(Instant now, RequestId request, uint32_t tokens, bool cancelled,
                        ClientEvents* events) override;
  void request_rejected(Instant now, RequestId request, ClientEvents* events) override;
  void saw_command(Instant now, const Command& command) override;

 private:
  struct Session {
    SessionId id{};
    uint32_t requests = 0;  // sent so far
    uint32_t live = 0;
    std::list<std::string>::iterator age;  // in ages_; only of named sessions
  };
  struct Item {
    std::unique_ptr<LiveRequest> request;  // null: `cancelled`
    RequestId cancelled{};
  };

  bool wait_for_arrival(Instant now);
  void deliver(Instant now, ClientEvents* events);
  static void cancel_once(LiveRequest* request, ClientEvents* events);
  void send(std::unique_ptr<LiveRequest> request, ClientEvents* events);
  std::string derived_session(const PromptTokens& prompt);
  Session* session_of(const LiveRequest& request, ClientEvents* events);
  void end_oldest_session(ClientEvents* events);
  void ended(RequestId request, ClientEvents* events);
  void report(const Progress& progress);

  const WallClock& clock_;
  const Options options_;
  const std::function<void()> notify_;
  std::vector<uint32_t> triggers_;  // 1, 2, ..., output_tokens_max

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::multimap<Instant, Item> inbox_;  // by the time at which the engine gets it
  bool stopping_ = false;
  std::vector<Progress> progress_;
  bool notified_ = false;
  Duration lag_{};

  // Of the simulation's thread.
  Instant wake_at_ = kNever;
  std::unordered_map<uint32_t, std::unique_ptr<LiveRequest>> requests_;
  std::unordered_map<std::string, Session> sessions_;  // named ones
  std::list<std::string> ages_;                        // names, the longest idle first
  DerivedSessions derived_{kSessionsMax};              // of requests whose client names no session
  std::map<uint32_t, Session> alone_;                  // sessions of one request, by request
  std::vector<Session> free_;                          // ended: their ids are used again
  uint32_t session_next_ = 0;
};

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_LIVE_CLIENT_H_
