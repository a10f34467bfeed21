// ScriptBackend is an adversary without physics. Steps and transfers take random times (also zero), transfers
// fail, coalesced steps are answered in parts, and requests sample end-of-sequence. As one more
// implementation it keeps the backend interface honest, and it checks the commands it receives (PageChecker).
//
// Every draw is keyed by (seed, engine, step or transfer or request and token). Coalescing, partial answers
// and the order of events therefore change no draw.

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
  uint32_t step_zero_per_100 = 0;   // how many steps take no time
  int64_t transfer_ns_max = 1'000;  // a transfer takes 0 .. transfer_ns_max
  uint32_t transfer_fails_per_100 = 0;
  uint32_t eos_per_1000 = 0;  // of sampled tokens
  bool pieces = false;        // answers coalesced steps in more parts than required
};

class ScriptBackend final : public Backend {
 public:
  // `tokens` may be null: then page contents are not checked. It must outlive the backend.
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
  // The number of steps that the engine's next answer covers; 0: none is in flight.
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
