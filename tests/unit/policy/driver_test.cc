#include "engine/runtime/driver.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "tests/support/policy_configs.h"
#include "tests/support/script_backend.h"

using namespace kvtwin;
using kvtwin::testing::ScriptBackend;
using kvtwin::testing::table_config;

namespace {

// One session of three requests in sequence. It hints at each next request and reports the session's end.
class OneSession final : public Client {
 public:
  Instant wake_at() const override { return sent_ == 0 ? Instant{} : kNever; }
  void wake(Instant, ClientEvents* events) override { send(events); }
  void tokens_emitted(Instant, RequestId, uint32_t, ClientEvents*) override {}
  void request_finished(Instant, RequestId, uint32_t, bool, ClientEvents* events) override {
    const bool last = sent_ == 3;
    events->push_back(
        SessionHint{SessionId{4},
                    last ? SessionHint::Kind::kSessionEnds : SessionHint::Kind::kNextRequestExpected,
                    {10}});
    if (!last) send(events);
  }
  void request_rejected(Instant, RequestId, ClientEvents*) override {}

 private:
  void send(ClientEvents* events) {
    RequestReady ready;
    ready.request = RequestId{sent_++};
    ready.session = SessionId{4};
    ready.index = sent_ - 1;
    ready.prompt_tokens = 40;
    ready.output_tokens = 3;
    events->push_back(ready);
  }
  uint32_t sent_ = 0;
};

struct HintsSeen final : Observer {
  std::vector<std::pair<uint32_t, bool>> hints;  // engine, whether the session ends
  void saw_event(Instant, EngineId engine, const Event& event) override {
    const auto* hint = std::get_if<SessionHint>(&event);
    if (hint != nullptr) hints.emplace_back(raw(engine), hint->kind == SessionHint::Kind::kSessionEnds);
  }
};

std::vector<std::pair<uint32_t, bool>> hints_seen(uint32_t engines, uint32_t prefill) {
  RunOptions options;
  options.prefill_engines = prefill;
  options.check_invariants = true;
  for (uint16_t i = 0; i < engines; ++i) {
    CoreConfig config = table_config();
    config.engine = EngineId{i};
    config.prefill_only = i < prefill;
    options.engines.push_back(config);
  }
  OneSession client;
  ScriptBackend backend({}, options.engines, nullptr);
  HintsSeen seen;
  CHECK(run(options, &client, &backend, {&seen}).idle);
  return seen.hints;
}

}  // namespace

TEST_CASE("driver: every engine that got a request of a session gets its hints, in ascending order") {
  using Hints = std::vector<std::pair<uint32_t, bool>>;
  // Round robin over more engines than requests: engine 3 gets none of them.
  CHECK(hints_seen(4, 0) == Hints{{0, false}, {0, false}, {1, false}, {0, true}, {1, true}, {2, true}});
  // Engines that prefill come before engines that decode.
  CHECK(hints_seen(4, 2) == Hints{{0, false},
                                  {2, false},
                                  {0, false},
                                  {1, false},
                                  {2, false},
                                  {3, false},
                                  {0, true},
                                  {1, true},
                                  {2, true},
                                  {3, true}});
}
