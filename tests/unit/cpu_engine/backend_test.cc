// What a page given to two requests would change, and the order in which CpuBackend ends copies. Whole runs
// are cases of every engine (tests/conformance/engines).

#include <doctest/doctest.h>

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
