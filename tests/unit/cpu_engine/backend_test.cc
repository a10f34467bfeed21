// The whole loop on real data: a policy under pressure, ScriptClient, the CPU engine. Whatever happens to a
// request (chunks, shared prefixes, preemption, the host tier, concurrent requests), it samples what it
// samples alone.

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "engine/common/cpu_backend.h"
#include "engine/methods/registry.h"
#include "engine/recorder/recorder.h"
#include "engine/runtime/driver.h"
#include "tests/support/script_client.h"
#include "tests/unit/cpu_engine/backend_checks.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

struct History {
  std::vector<uint32_t> tokens;   // all input tokens
  std::vector<uint32_t> sampled;  // by output token
  uint32_t prompt = 0;
};

std::vector<OutcomeSource*> sources_of(const std::vector<std::unique_ptr<cpu::CpuEngine>>& engines) {
  std::vector<OutcomeSource*> out;
  for (const auto& engine : engines) out.push_back(engine.get());
  return out;
}

// Performs steps and records what each request read and sampled.
class Witness final : public OutcomeSource {
 public:
  Witness(const std::vector<std::unique_ptr<cpu::CpuEngine>>& engines, const cpu::TokenIds* tokens,
          uint32_t vocab)
      : engines_(engines), all_(sources_of(engines)), tokens_(*tokens), vocab_(vocab) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    cpu::CpuEngine& engine = *engines_[raw(launch.engine)];
    engine.step(launch, offset, values);
    finite_ = finite_ && std::all_of(engine.logits().begin(), engine.logits().end(),
                                     [](float x) { return std::isfinite(x); });
    CHECK(engine.logits().size() == engine.samples().size() * vocab_);
    for (const auto& sample : engine.samples()) {
      History& history = requests_[sample.request];
      history.prompt = tokens_.prompt_tokens(sample.request);
      history.tokens.clear();
      for (uint32_t p = 0; p < sample.position; ++p)
        history.tokens.push_back(tokens_.token(sample.request, p));
      history.sampled.resize(sample.position - history.prompt);
      history.sampled.push_back(sample.token);
    }
  }
  void notify(const Command& command) override {
    preemptions_ += std::holds_alternative<DropRequestState>(command) &&
                    std::get<DropRequestState>(command).reason == DropRequestState::Reason::kPreempted;
    if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
      recalls_ += transfer->kind == TransferKind::kLoad ? 1 : 0;
      from_disk_ += transfer->source_tier == Tier::kDisk ? 1 : 0;
      returns_ += transfer->kind == TransferKind::kSwapIn ? 1 : 0;
    }
    all_.notify(command);
  }

  const std::map<RequestId, History>& requests() const { return requests_; }
  bool finite() const { return finite_; }
  uint32_t preemptions() const { return preemptions_; }
  uint32_t recalls() const { return recalls_; }
  uint32_t returns() const { return returns_; }
  uint32_t from_disk() const { return from_disk_; }

 private:
  const std::vector<std::unique_ptr<cpu::CpuEngine>>& engines_;
  cpu::EngineSources all_;
  const cpu::TokenIds& tokens_;
  const uint32_t vocab_;
  std::map<RequestId, History> requests_;
  bool finite_ = true;
  uint32_t preemptions_ = 0, recalls_ = 0, returns_ = 0, from_disk_ = 0;
};

// From this seed on, preempted requests are swapped out to the host.
constexpr uint64_t kSwapSeeds = 40;
// From this seed on, a disk tier is below the host tier.
constexpr uint64_t kDiskSeeds = 80;

CoreConfig config_of(uint64_t seed) {
  Prng prng(draw({seed, 77}));
  CoreConfig config;
  config.page_tokens = prng.chance(1, 2) ? 4 : 8;
  config.unit_tokens = prng.chance(1, 2) ? config.page_tokens : 2;
  config.pages_gpu = static_cast<uint32_t>(prng.range(20, 60));
  if (prng.chance(2, 3)) {
    config.policies.placement = "host";
    config.pages_host = 40;
    config.offload_pages_target = config.pages_gpu / 2;
    config.offload_batch_pages = 4;
  }
  config.requests_max = static_cast<uint32_t>(prng.range(2, 6));
  config.step_tokens_max = static_cast<uint32_t>(prng.range(8, 64));
  config.steps_in_flight_max = static_cast<uint32_t>(prng.range(1, 2));
  config.batch_order = prng.chance(1, 2) ? BatchOrder::kDecodeFirst : BatchOrder::kMixed;
  if (seed > kDiskSeeds) {
    config.policies.placement = "host";
    config.page_tokens = config.unit_tokens = 4;
    config.pages_gpu = static_cast<uint32_t>(prng.range(24, 40));
    config.pages_host = static_cast<uint32_t>(prng.range(2, 12));
    config.pages_disk = static_cast<uint32_t>(prng.range(10, 60));
    config.offload_pages_target = config.pages_gpu / 2;
    config.offload_batch_pages = 3;
    config.spill_pages_target = config.pages_host;
  } else if (seed > kSwapSeeds) {
    config.policies.placement = "host";
    config.preemption = PreemptionKind::kSwap;
    config.pages_gpu = static_cast<uint32_t>(prng.range(20, 28));
    config.pages_host = 60;
    config.offload_pages_target = prng.chance(1, 2) ? 0 : config.pages_gpu / 4;
  }
  KVT_CHECK(!validate_core_config(config).has_value());
  return config;
}

struct Totals {
  uint64_t requests = 0, preemptions = 0, recalls = 0, returns = 0, from_disk = 0, reused = 0;
};

class PrefixHitCounter final : public Observer {
 public:
  explicit PrefixHitCounter(Totals* totals) : totals_(*totals) {}
  void saw_command(Instant, const Command& command) override {
    if (const auto* launch = std::get_if<LaunchStep>(&command)) totals_.reused += launch->prefix_hits.size();
  }

 private:
  Totals& totals_;
};

void check_run(uint64_t seed, Totals* totals) {
  CAPTURE(seed);
  const LlmSpec llm = tiny_models()[seed % 4];
  const ModelWeights weights = ModelWeights::random(llm, seed);
  RunOptions options;
  options.check_invariants = true;
  for (uint16_t i = 0; i < 1 + seed % 2; ++i) {
    options.engines.push_back(config_of(seed));
    options.engines.back().engine = EngineId{i};
  }
  const CoreConfig& config = options.engines[0];
  ScriptClient client({.seed = seed,
                       .sessions = seed > kDiskSeeds ? 7u : 4u,
                       .requests_per_session = seed > kDiskSeeds ? 5u : 3u,
                       .unit_tokens = config.unit_tokens,
                       .prompt_tokens_max = 60,
                       .output_tokens_max = 20,
                       .cancels_per_100 = seed % 3 == 0 ? 30u : 0u});
  cpu::IdentityTokens tokens({.seed = seed, .unit_tokens = config.unit_tokens, .vocab = llm.vocab});
  std::vector<std::unique_ptr<cpu::CpuEngine>> made;
  std::vector<uint32_t> in_flight;
  for (const CoreConfig& engine : options.engines) {
    const cpu::KvMemory memory{engine.page_tokens, engine.pages_gpu, engine.pages_host, true,
                               engine.pages_disk};
    made.push_back(std::make_unique<cpu::CpuEngine>(cpu::CpuEngineConfig{.engine = engine.engine}, &weights,
                                                    &tokens, paged(memory, llm)));
    in_flight.push_back(engine.steps_in_flight_max);
  }
  Witness witness(made, &tokens, llm.vocab);
  cpu::CpuBackend backend({in_flight}, &witness, drawn_times(seed));
  Recorder recorder(options, {"swarm", seed});
  PrefixHitCounter prefix_hits(totals);
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &backend, {&recorder, &prefix_hits});
  CHECK(end.idle);
  CHECK(client.content());
  CHECK(witness.finite());  // no unwritten slot was read

  check_replays(recorder.finish(end), end.digest);

  for (const auto& [request, history] : witness.requests()) {
    CAPTURE(raw(request));
    GivenTokens given;
    given.give(request, history.tokens, history.prompt);
    Steps alone({.page_tokens = 16, .pages_gpu = 40, .poison = true}, &weights, &given, 1);
    alone.begin(request);
    alone.run({{request, history.prompt}});
    for (size_t i = history.prompt; i < history.tokens.size(); ++i) alone.run({{request, 1}});
    CHECK(alone.sampled(request) == history.sampled);
  }
  totals->requests += witness.requests().size();
  totals->preemptions += witness.preemptions();
  totals->recalls += witness.recalls();
  totals->returns += witness.returns();
  totals->from_disk += witness.from_disk();
}

}  // namespace

TEST_CASE("X-2 X-9 backend: every request samples what it samples alone, and its log replays") {
  Totals totals;
  for (uint64_t seed = 1; seed <= 40; ++seed) check_run(seed, &totals);
  MESSAGE(totals.requests << " requests, " << totals.reused << " prefix hits, " << totals.preemptions
                          << " preemptions, " << totals.recalls << " recalls");
  CHECK(totals.reused > 20);
  CHECK(totals.preemptions > 0);
  CHECK(totals.recalls > 0);
}

TEST_CASE("X-6 backend: requests that were swapped out continue unchanged") {
  Totals totals;
  for (uint64_t seed = kSwapSeeds + 1; seed <= kSwapSeeds + 30; ++seed) check_run(seed, &totals);
  MESSAGE(totals.requests << " requests, " << totals.preemptions << " preemptions, " << totals.returns
                          << " returns");
  CHECK(totals.returns > 5);
}

TEST_CASE("X-2 X-6 backend: prefixes that were on a disk are unchanged") {
  Totals totals;
  for (uint64_t seed = kDiskSeeds + 1; seed <= kDiskSeeds + 30; ++seed) check_run(seed, &totals);
  MESSAGE(totals.requests << " requests, " << totals.recalls << " recalls, " << totals.from_disk
                          << " from the disk");
  CHECK(totals.from_disk > 20);
}

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
