// What a page given to two requests would change, and the order in which CpuBackend ends copies. Whole runs
// are cases of every engine (tests/conformance/engines).

#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/common/cpu_backend.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"

using namespace kvtwin;
using namespace kvtwin::testing;

TEST_CASE("G-5 backend: a page given to two requests by error would change their samples") {
  const LlmSpec llm = tiny_models()[0];
  const ModelWeights weights = ModelWeights::random(llm, 5);
  GivenTokens given;
  given.give(RequestId{1}, random_tokens(1, 40, llm.vocab), 12);
  given.give(RequestId{2}, random_tokens(2, 40, llm.vocab), 20);
  cpu::CpuEngine engine({}, &weights, &given, paged({.page_tokens = 8, .pages_gpu = 10}, llm));
  const auto logits = [&](PageId second) {
    const PlanEntry entries[] = {{RequestId{1}, EntryKind::kChunk, true, true, 12, 0},
                                 {RequestId{2}, EntryKind::kChunk, true, false, 12, 0}};
    const PageAllocation allocations[] = {
        {0, 0, PageId{0}}, {0, 0, PageId{1}}, {0, 1, PageId{2}}, {0, 1, second}};
    DataOutcomes values;
    engine.step({.entries = entries, .allocations = allocations, .prefix_hits = {}}, 0, &values);
    return std::vector<float>(engine.logits().begin(), engine.logits().end());
  };
  CHECK(logits(PageId{3}) == logits(PageId{4}));
  CHECK(logits(PageId{3}) != logits(PageId{1}));
}

TEST_CASE("backend: copies during steps end in sequence in each direction, and never before they began") {
  // Two steps of 100 ns. Copies take 30, and are polled only after the concurrent step.
  class Source final : public OutcomeSource {
   public:
    void step(const LaunchStep&, uint32_t, DataOutcomes* values) override { values->clear(), ++steps; }
    void notify(const Command& command) override {
      notified += std::holds_alternative<StartTransfer>(command);
    }
    int steps = 0, notified = 0;
  } source;
  std::vector<uint64_t> asked;
  cpu::CpuBackendOptions options{.steps_in_flight_max = {1}};
  options.copy_time = [&](EngineId, TransferId transfer) {
    CHECK(source.steps > 0);
    asked.push_back(raw(transfer));
    return Duration{30};
  };
  cpu::CpuBackend backend(options, &source, [](const std::function<void()>& work) {
    work();
    return Duration{100};
  });
  const auto copy = [&](uint64_t number) {
    backend.submit(StartTransfer{.transfer = TransferId{number}, .source = {}, .target = {}});
  };
  const PlanEntry entry{RequestId{1}, EntryKind::kDecode, true, true, 1, 0};
  backend.submit(LaunchStep{.tokens = 1, .entries = {&entry, 1}, .allocations = {}, .prefix_hits = {}});
  copy(1);
  copy(2);
  CHECK(source.notified == 2);
  Instant now;
  Event event;
  for (const int64_t at : {30, 60}) {
    REQUIRE(backend.next(&now, &event));
    CHECK(now.ns == at);
    CHECK(std::holds_alternative<TransferDone>(event));
  }
  REQUIRE(backend.next(&now, &event));
  CHECK(now.ns == 100);
  CHECK(std::holds_alternative<StepDone>(event));
  // The other direction does not wait for this one.
  copy(3);
  backend.submit(
      StartTransfer{.transfer = TransferId{4}, .target_tier = Tier::kHost, .source = {}, .target = {}});
  copy(5);
  for (const int64_t at : {130, 130, 160}) {
    REQUIRE(backend.next(&now, &event));
    CHECK(now.ns == at);
  }
  CHECK(asked == std::vector<uint64_t>{1, 2, 3, 4, 5});
  CHECK(!backend.next(&now, &event));
}

namespace {

// Steps that copy nothing; the host's clock is moved by hand, and by each step.
struct HostRun {
  class Source final : public OutcomeSource {
   public:
    explicit Source(int64_t* clock) : clock_(*clock) {}
    void step(const LaunchStep&, uint32_t, DataOutcomes* values) override { values->clear(), clock_ += 7777; }
    void notify(const Command&) override { clock_ += 5; }

   private:
    int64_t& clock_;
  };

  explicit HostRun(std::vector<uint32_t> in_flight) : source(&clock) {
    cpu::CpuBackendOptions options;
    options.steps_in_flight_max = std::move(in_flight);
    options.host_clock = [this] { return Instant{clock}; };
    backend = std::make_unique<cpu::CpuBackend>(options, &source, [](const std::function<void()>& work) {
      work();
      return Duration{100};
    });
  }
  void handle(uint16_t engine, int64_t took) {
    Event none;
    REQUIRE(!backend->interrupt(EngineId{engine}, &none));
    clock += took;
  }
  void launch(uint16_t engine, uint64_t step, uint32_t repeat = 1) {
    const PlanEntry entry{RequestId{engine + 1u}, EntryKind::kDecode, true, true, 1, 0};
    LaunchStep out{.tokens = 1, .entries = {&entry, 1}, .allocations = {}, .prefix_hits = {}};
    out.engine = EngineId{engine}, out.step = StepId{step}, out.repeat = repeat;
    backend->submit(out);
  }
  // The next event is the end of a step, at `end`, `host` of it behind the host.
  void expect(int64_t end, int64_t host) {
    Instant now;
    Event event;
    REQUIRE(backend->next(&now, &event));
    const StepDone& done = std::get<StepDone>(event);
    CHECK(now.ns == end);
    CHECK(done.ends.back().ns == end);
    CHECK(done.outcome.host.ns == host);
  }

  int64_t clock = 1'000'000;
  Source source;
  std::unique_ptr<cpu::CpuBackend> backend;
};

}  // namespace

TEST_CASE("backend: a step starts when the host has submitted it, and not before the last one has ended") {
  HostRun run({1});
  run.clock += 5000;  // what prepares the run
  run.handle(0, 30);
  run.launch(0, 0);
  run.clock += 4;  // what follows the submission runs beside the step
  run.expect(130, 30);
  run.clock += 20;
  run.launch(0, 1, 3);
  run.clock += 9;
  run.expect(250, 20);
  // Further steps of a coalesced launch wait until the host has dealt with the end of the one before.
  run.clock += 12;
  run.expect(362, 12);
  run.expect(462, 0);
}

TEST_CASE("backend: with two steps in flight the host is hidden, up to the length of a step") {
  HostRun run({2});
  run.handle(0, 10);
  run.launch(0, 0);
  run.launch(0, 1);
  run.expect(110, 10);
  run.clock += 60;
  run.launch(0, 2);
  run.expect(210, 0);
  run.clock += 140;  // longer than the step that runs meanwhile, until 310
  run.launch(0, 3);
  run.expect(310, 0);
  run.expect(450, 40);
}

TEST_CASE("backend: a host handles one event after the other, and engines have hosts of their own") {
  HostRun run({1, 1});
  const auto timer = [&](int64_t at) { run.backend->submit(SetTimer{kClient, TimerId{0}, Instant{at}}); };
  const auto wait = [&](int64_t at) {
    Instant now;
    Event event;
    REQUIRE(run.backend->next(&now, &event));
    CHECK(std::holds_alternative<Timer>(event));
    CHECK(now.ns == at);
  };
  timer(1000);
  timer(1010);
  wait(1000);
  run.handle(0, 50);
  wait(1010);  // the first engine's host is busy until 1050
  run.handle(1, 3);
  run.launch(1, 0);
  run.handle(0, 6);  // both were sent this event: the time counts for each
  run.launch(0, 0);
  run.expect(1113, 3);
  run.expect(1159, 49);
  // The duration of a copy that an engine performs is not host time.
  run.backend->submit(StartTransfer{.transfer = TransferId{1}, .source = {}, .target = {}});
  run.clock += 2;
  run.launch(0, 1);
  Instant now;
  Event event;
  REQUIRE(run.backend->next(&now, &event));
  CHECK(now.ns == 1259);
  CHECK(std::holds_alternative<TransferDone>(event));
  run.expect(1261, 2);
}
