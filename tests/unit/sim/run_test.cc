// The real policy in the simulated backend: it equals arithmetic, and coalescing changes nothing.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "sim/behaviour/behaviour_retention.h"
#include "sim/behaviour/combined_source.h"
#include "tests/support/analytic_backend.h"
#include "tests/support/test_policies.h"
#include "tests/unit/sim/in_child.h"
#include "tests/unit/sim/script.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Sessions with growing turns: each request repeats the history of its session, after a pause.
class GrowingSessions final : public Client {
 public:
  GrowingSessions(uint64_t seed, uint32_t sessions, uint32_t turns) : seed_(seed), turns_(turns) {
    for (uint32_t i = 0; i < sessions; ++i) due_.push_back({{pick(i, 0, 3'000) * 1000}, i, 0, 0});
  }
  Instant wake_at() const override {
    Instant at = kNever;
    for (const Due& due : due_) at = std::min(at, due.at);
    return at;
  }
  void wake(Instant now, ClientEvents* events) override {
    for (size_t i = 0; i < due_.size();) {
      if (due_[i].at > now) {
        ++i;
        continue;
      }
      const Due due = due_[i];
      due_.erase(due_.begin() + static_cast<ptrdiff_t>(i));
      Request request{due.session,
                      due.turn,
                      due.tokens + static_cast<uint32_t>(pick(due.session, due.turn * 4 + 1, 400) + 1),
                      static_cast<uint32_t>(pick(due.session, due.turn * 4 + 2, 80) + 1),
                      {}};
      request.identity = {due.session, 0, (request.prompt + request.output) / 16};
      requests_.push_back(request);
      RequestReady ready;
      ready.request = RequestId{static_cast<uint32_t>(requests_.size() - 1)};
      ready.session = SessionId{due.session}, ready.index = due.turn;
      ready.prompt_tokens = request.prompt, ready.output_tokens = request.output;
      ready.identity = {&requests_.back().identity, 1};
      events->push_back(ready);
    }
  }
  void tokens_emitted(Instant, RequestId, uint32_t, ClientEvents*) override {}
  void request_finished(Instant now, RequestId id, uint32_t tokens, bool, ClientEvents*) override {
    const Request& request = requests_[raw(id)];
    log += fmt::format("{} request {}.{} {}\n", now.ns, request.session, request.turn, tokens);
    if (request.turn + 1 == turns_) return;
    const Duration pause{pick(request.session, request.turn * 4 + 3, 900) * 1000};
    due_.push_back({now + pause, request.session, request.turn + 1, request.prompt + tokens});
  }
  void request_rejected(Instant now, RequestId id, ClientEvents*) override {
    log += fmt::format("{} rejected {}\n", now.ns, raw(id));
  }
  std::string log;

 private:
  struct Due {
    Instant at{};
    uint32_t session = 0, turn = 0, tokens = 0;
  };
  struct Request {
    uint32_t session = 0, turn = 0, prompt = 0, output = 0;
    UnitRun identity;
  };
  int64_t pick(uint64_t a, uint64_t b, uint64_t below) const {
    return static_cast<int64_t>(draw({seed_, a, b}) % below);
  }
  const uint64_t seed_;
  const uint32_t turns_;
  std::vector<Due> due_;
  std::deque<Request> requests_;  // referenced by spans
};

class Transfers final : public Observer {
 public:
  void saw_command(Instant, const Command& command) override {
    if (const auto* launch = std::get_if<LaunchStep>(&command)) coalesced += launch->repeat > 1;
    started += std::holds_alternative<StartTransfer>(command);
  }
  uint64_t coalesced = 0, started = 0;
};

struct SimulationSetup {
  std::vector<ToyCost> costs;
  sim::SimConfig config;
  RunOptions options;

  explicit SimulationSetup(uint64_t seed) {
    Prng prng(seed);
    const auto engines = static_cast<uint32_t>(prng.range(1, 3));
    const bool coarse = prng.chance(1, 2);
    const auto in_flight = static_cast<uint32_t>(prng.range(1, 2));
    for (uint32_t i = 0; i < engines; ++i) {
      costs.emplace_back(seed + i, coarse, static_cast<Ticks>(prng.range(0, 1) * prng.range(0, 2'000'000)));
    }
    for (uint32_t i = 0; i < engines; ++i) {
      config.engines.push_back(
          {.cost = &costs[i], .page_bytes = 200'000, .steps_in_flight_max = in_flight, .gpu_first = i});
      CoreConfig core;
      core.engine = EngineId{static_cast<uint16_t>(i)};
      core.pages_gpu = static_cast<uint32_t>(prng.range(140, 400));
      core.pages_host = prng.chance(1, 2) ? 2000 : 0;
      if (core.pages_host > 0) {
        core.policies.placement = "host";
        core.offload_pages_target = core.pages_gpu / 2;
        core.offload_batch_pages = 16;
      }
      core.step_tokens_max = static_cast<uint32_t>(prng.range(64, 512));
      core.requests_max = static_cast<uint32_t>(prng.range(2, 12));
      core.steps_in_flight_max = in_flight;
      options.engines.push_back(core);
    }
    options.routing = RoutingKind::kSessionAffine;
    options.check_invariants = true;
    config.node.gpus = engines;
    config.node.host_memory_gb_per_s = 100'000;
  }
};

std::string summary(const RunEnd& end, const GrowingSessions& talk) {
  return fmt::format("ended {} digest {:016x} idle {}\n", end.ended_at.ns, end.digest, end.idle) + talk.log;
}

std::string computed(uint64_t seed, const SimulationSetup& scene, const RunOptions& options,
                     Transfers* seen) {
  GrowingSessions talk(seed, 10, 4);
  AnalyticBackend backend(scene.config);
  const RunEnd end = run(options, &talk, &backend, {seen});
  return summary(end, talk) + fmt::format("events {}\n", end.events);
}

}  // namespace

TEST_CASE("run: the policy's decisions and every request's end equal those of arithmetic") {
  uint64_t coalesced = 0, transfers = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    SimulationSetup scene(seed);
    Transfers seen;
    const std::string want = computed(seed, scene, scene.options, &seen);
    coalesced += seen.coalesced;
    transfers += seen.started;
    const std::string got = in_child([&] {
      GrowingSessions talk(seed, 10, 4);
      sim::SimReport report;
      const RunEnd end = sim::run_simulated(scene.config, scene.options, &talk, {}, &report);
      for (const sim::StepTotals& totals : report.engines) {
        if (totals.steps == 0) return std::string("an engine did nothing");
      }
      return summary(end, talk) + fmt::format("events {}\n", end.events);
    });
    REQUIRE(got == want);
    REQUIRE(want.find("idle true") != std::string::npos);
  }
  CHECK(coalesced > 1000);
  CHECK(transfers > 100);
}

TEST_CASE("run: coalesced and uncoalesced runs have one digest and one time for every request") {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    SimulationSetup scene(seed);
    Transfers seen;
    const std::string coalesced = computed(seed, scene, scene.options, &seen);
    RunOptions uncoalesced = scene.options;
    for (CoreConfig& core : uncoalesced.engines) core.repeat_max = 1;
    SimulationSetup again(seed);
    const std::string single = computed(seed, again, uncoalesced, &seen);
    REQUIRE(coalesced.substr(0, coalesced.find("events")) == single.substr(0, single.find("events")));
  }
}

namespace {

struct Retained {
  const char* layout;
  const char* budget;
  CompressionTrigger compression_trigger;
  sim::RetentionModel model;
};

// When and by whom compressions are decided: by the model's own source at launch, by a source at the step's
// start as in a real engine, or by a source combined with others.
class SilentOutcomes final : public OutcomeSource {
 public:
  void step(const LaunchStep&, uint32_t, DataOutcomes* values) override { values->clear(); }
  void notify(const Command&) override {}
};
enum class QueryTime : uint8_t { kAtLaunch, kAsItStarts, kAmongOthers };

// Scene `seed` with requests that retain a part of their KV.
std::string kept_run(uint64_t seed, const Retained& retained, uint32_t repeat_max,
                     QueryTime asked = QueryTime::kAsItStarts, PartitionKind kind = PartitionKind::kUniform) {
  return in_child([&] {
    SimulationSetup scene(seed);
    std::vector<std::unique_ptr<sim::RetentionSource>> sources;
    std::vector<std::unique_ptr<sim::CombinedSource>> combined;
    std::vector<std::unique_ptr<sim::PartitionPrice>> partitions;
    SilentOutcomes others;
    for (size_t i = 0; i < scene.options.engines.size(); ++i) {
      CoreConfig& core = scene.options.engines[i];
      core.repeat_max = repeat_max;
      core.pages_host = core.offload_pages_target = 0;
      core.pages_gpu *= 6;
      core.prefix_cache = false;
      PolicySet& set = core.policies;
      set.placement = "gpu";
      set.identity = "session";
      set.layout = retained.layout;
      set.budget = retained.budget;
      set.layout_spec = {.layers = 2, .kv_heads = 4, .heads_per_group = 2};
      BudgetSpec& budget = set.budget_spec;
      budget.chunk_tokens = 64;
      budget.kv_entries = 90;
      budget.ratio = kWhole / 3;
      budget.retained_min = 40;
      budget.mu.assign(8, kWhole / 3);
      budget.sigma.assign(8, kWhole / 10);
      sources.push_back(std::make_unique<sim::RetentionSource>(core, retained.model, seed));
      sim::SimEngine& engine = scene.config.engines[i];
      combined.push_back(std::make_unique<sim::CombinedSource>(
          std::vector<OutcomeSource*>{&others, sources.back().get(), &others}));
      if (std::string(retained.layout) == "ragged") {
        sim::PartitionPriceSpec price;
        price.kind = kind;
        price.grid.sms = 4;
        price.layout = set.layout_spec;
        for (uint64_t head = 0; head < 8; ++head) price.held.push_back(kWhole / 8 * (head + 1));
        partitions.push_back(std::make_unique<sim::PartitionPrice>(price));
        engine.partition = partitions.back().get();
      }
      if (asked == QueryTime::kAtLaunch) engine.retention = sources.back().get();
      if (asked == QueryTime::kAsItStarts) engine.source = sources.back().get();
      if (asked == QueryTime::kAmongOthers) engine.source = combined.back().get();
    }
    scene.options.make_axes = [&](const CoreConfig& c) {
      return axes_with_scorer(c, retained.compression_trigger);
    };
    GrowingSessions talk(seed, 10, 4);
    const RunEnd end = sim::run_simulated(scene.config, scene.options, &talk, {});
    return summary(end, talk);
  });
}

}  // namespace

TEST_CASE("run: requests that retain a part of their KV end at the same times, coalesced or not") {
  using sim::RetentionModel;
  const Retained all[] = {
      {"ragged", "reserved", CompressionTrigger::kChunkEnd, RetentionModel::kFixed},
      {"ragged", "released", CompressionTrigger::kChunkEnd, RetentionModel::kProfile},
      {"ragged", "top_per_layer", CompressionTrigger::kPromptEnd, RetentionModel::kProfile},
      {"compact", "uniform", CompressionTrigger::kDecodeStep, RetentionModel::kFixed},
      {"page_mask", "uniform", CompressionTrigger::kPromptEnd, RetentionModel::kFixed},
      {"ring", "uniform", CompressionTrigger::kAtNoTime, RetentionModel::kFixed}};
  for (const Retained& retained : all) {
    CAPTURE(retained.layout);
    CAPTURE(retained.budget);
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      const std::string coalesced = kept_run(seed, retained, 1u << 20);
      REQUIRE(coalesced.find("idle true") != std::string::npos);
      REQUIRE(coalesced == kept_run(seed, retained, 1));
    }
  }
}

TEST_CASE("run: the source of the retained counts and its query time make no difference") {
  using sim::RetentionModel;
  const Retained all[] = {
      {"ragged", "released", CompressionTrigger::kChunkEnd, RetentionModel::kProfile},
      {"ragged", "top_per_layer", CompressionTrigger::kPromptEnd, RetentionModel::kProfile},
      {"page_mask", "uniform", CompressionTrigger::kPromptEnd, RetentionModel::kFixed}};
  for (const Retained& retained : all) {
    CAPTURE(retained.layout);
    CAPTURE(retained.budget);
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      const std::string at_launch = kept_run(seed, retained, 1u << 20, QueryTime::kAtLaunch);
      REQUIRE(at_launch.find("idle true") != std::string::npos);
      REQUIRE(at_launch == kept_run(seed, retained, 1u << 20, QueryTime::kAsItStarts));
      REQUIRE(at_launch == kept_run(seed, retained, 1u << 20, QueryTime::kAmongOthers));
    }
  }
}

TEST_CASE("run: priced by the partition of attention, runs end at the same times, coalesced or not") {
  const Retained retained{"ragged", "reserved", CompressionTrigger::kChunkEnd, sim::RetentionModel::kFixed};
  for (const PartitionKind kind : {PartitionKind::kUniform, PartitionKind::kFlashInfer,
                                   PartitionKind::kStreamK, PartitionKind::kAotFractions}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      CAPTURE(seed);
      const std::string coalesced = kept_run(seed, retained, 1u << 20, QueryTime::kAtLaunch, kind);
      REQUIRE(coalesced.find("idle true") != std::string::npos);
      REQUIRE(coalesced == kept_run(seed, retained, 1, QueryTime::kAtLaunch, kind));
    }
  }
}
