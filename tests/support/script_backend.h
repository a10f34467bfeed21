// A backend without physics, nastier than SimGrid or a GPU: steps and transfers take random times (none at
// all too), transfers fail, stretches are answered in pieces, requests sample end-of-sequence. It also keeps
// the backend interface honest by being one more implementation of it, and checks what it is told
// (PageChecker).
//
// Every draw is keyed by (seed, engine, step or transfer or request and token), so that folding, pieces and
// the order of events change nothing.

#ifndef KVTWIN_TESTS_SUPPORT_SCRIPT_BACKEND_H_
#define KVTWIN_TESTS_SUPPORT_SCRIPT_BACKEND_H_

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "engine/methods/config.h"
#include "engine/runtime/backend.h"
#include "tests/support/page_checker.h"

namespace kvtwin::testing {

class KvEntryChecker;

struct ScriptBackendOptions {
  uint64_t seed = 0;
  int64_t step_ns_max = 1'000;      // a step takes 0 .. step_ns_max
  uint32_t step_zero_per_100 = 0;   // so many steps take no time at all
  int64_t transfer_ns_max = 1'000;  // likewise
  uint32_t transfer_fails_per_100 = 0;
  uint32_t eos_per_1000 = 0;  // of sampled tokens
  bool pieces = false;        // answers stretches in more pieces than it must
};

class ScriptBackend final : public Backend {
 public:
  // `tokens` may be null: then contents are not checked. It must outlive the world.
  ScriptBackend(const ScriptBackendOptions& options, const std::vector<CoreConfig>& engines,
                const TokenSource* tokens);
  ~ScriptBackend() override;

  void submit(const Command& command) override;
  bool next(Instant* now, Event* event) override;
  bool interrupt(EngineId engine, Event* event) override;

 private:
  struct Launch;
  struct Engine;
  struct Transfer {
    Instant at{};
    EngineId engine{};
    TransferId id{};
    bool fails = false;
  };
  struct Alarm {
    Instant at{};
    uint64_t order = 0;
    Timer timer;
  };

  void launch(const LaunchStep& command);
  // How many steps the next answer of the engine covers; 0: nothing is in flight.
  uint32_t next_piece(const Engine& engine) const;
  void answer(Engine* engine, uint32_t steps, Event* event);
  void run_step(Engine* engine, const Launch& launch, uint32_t offset);
  static void check_entries(KvEntryChecker* kv_entries, const Launch& launch,
                            const std::vector<PlanEntry>& entries, uint32_t offset);
  void cut(Engine* engine, uint64_t end);
  bool samples_eos(const Engine& engine, RequestId request, uint32_t token) const;

  const ScriptBackendOptions options_;
  Instant now_{};
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Transfer> transfers_;
  std::vector<Alarm> alarms_;
  uint64_t alarm_next_ = 0;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_SCRIPT_BACKEND_H_
