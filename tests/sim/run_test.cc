// The real policy in the simulated world: equal to arithmetic, and folding changes nothing.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "sim/behaviour_retention.h"
#include "sim/combined_source.h"
#include "tests/sim/in_child.h"
#include "tests/sim/script.h"
#include "tests/support/analytic_backend.h"
#include "tests/support/test_policies.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Sessions whose turns grow: each call repeats what its session said before, after a pause.
class Talk final : public Client {
 public:
  Talk(uint64_t seed, uint32_t sessions, uint32_t turns) : seed_(seed), turns_(turns) {
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
      Call call{due.session,
                due.turn,
                due.tokens + static_cast<uint32_t>(pick(due.session, due.turn * 4 + 1, 400) + 1),
                static_cast<uint32_t>(pick(due.session, due.turn * 4 + 2, 80) + 1),
                {}};
      call.identity = {due.session, 0, (call.prompt + call.output) / 16};
      calls_.push_back(call);
      CallReady ready;
      ready.call = CallId{static_cast<uint32_t>(calls_.size() - 1)};
      ready.session = SessionId{due.session}, ready.index = due.turn;
      ready.prompt_tokens = call.prompt, ready.output_tokens = call.output;
      ready.identity = {&calls_.back().identity, 1};
      events->push_back(ready);
    }
  }
  void tokens_emitted(Instant, CallId, uint32_t, ClientEvents*) override {}
  void call_finished(Instant now, CallId id, uint32_t tokens, bool, ClientEvents*) override {
    const Call& call = calls_[raw(id)];
    log += fmt::format("{} call {}.{} {}\n", now.ns, call.session, call.turn, tokens);
    if (call.turn + 1 == turns_) return;
    const Duration pause{pick(call.session, call.turn * 4 + 3, 900) * 1000};
    due_.push_back({now + pause, call.session, call.turn + 1, call.prompt + tokens});
  }
  void call_rejected(Instant now, CallId id, ClientEvents*) override {
    log += fmt::format("{} rejected {}\n", now.ns, raw(id));
  }
  std::string log;

 private:
  struct Due {
    Instant at{};
    uint32_t session = 0, turn = 0, tokens = 0;
  };
  struct Call {
    uint32_t session = 0, turn = 0, prompt = 0, output = 0;
    UnitRun identity;
  };
  int64_t pick(uint64_t a, uint64_t b, uint64_t below) const {
    return static_cast<int64_t>(draw({seed_, a, b}) % below);
  }
  const uint64_t seed_;
  const uint32_t turns_;
  std::vector<Due> due_;
  std::deque<Call> calls_;  // spans into it are handed out
};

class Transfers final : public Observer {
 public:
  void saw_command(Instant, const Command& command) override {
    if (const auto* launch = std::get_if<LaunchStep>(&command)) folded += launch->repeat > 1;
    started += std::holds_alternative<StartTransfer>(command);
  }
  uint64_t folded = 0, started = 0;
};

struct Scene {
  std::vector<ToyCost> costs;
  sim::SimConfig config;
  RunOptions options;

  explicit Scene(uint64_t seed) {
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
        core.clean_pages_target = core.pages_gpu / 2;
        core.clean_batch_pages = 16;
      }
      core.step_tokens_max = static_cast<uint32_t>(prng.range(64, 512));
      core.calls_max = static_cast<uint32_t>(prng.range(2, 12));
      core.steps_in_flight_max = in_flight;
      options.engines.push_back(core);
    }
    options.routing = RoutingKind::kSessionAffine;
    options.check_invariants = true;
    config.node.gpus = engines;
    config.node.host_memory_gb_per_s = 100'000;
  }
};

std::string summary(const RunEnd& end, const Talk& talk) {
  return fmt::format("ended {} digest {:016x} idle {}\n", end.ended_at.ns, end.digest, end.idle) + talk.log;
}

std::string computed(uint64_t seed, const Scene& scene, const RunOptions& options, Transfers* seen) {
  Talk talk(seed, 10, 4);
  AnalyticBackend world(scene.config);
  const RunEnd end = run(options, &talk, &world, {seen});
  return summary(end, talk) + fmt::format("events {}\n", end.events);
}

}  // namespace

TEST_CASE("run: the policy's decisions and every call's end are those of arithmetic") {
  uint64_t folded = 0, transfers = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Scene scene(seed);
    Transfers seen;
    const std::string want = computed(seed, scene, scene.options, &seen);
    folded += seen.folded;
    transfers += seen.started;
    const std::string got = in_child([&] {
      Talk talk(seed, 10, 4);
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
  CHECK(folded > 1000);
  CHECK(transfers > 100);
}

TEST_CASE("run: folded and unfolded runs have one digest and one time for every call") {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    Scene scene(seed);
    Transfers seen;
    const std::string folded = computed(seed, scene, scene.options, &seen);
    RunOptions unfolded = scene.options;
    for (CoreConfig& core : unfolded.engines) core.repeat_max = 1;
    Scene again(seed);
    const std::string single = computed(seed, again, unfolded, &seen);
    REQUIRE(folded.substr(0, folded.find("events")) == single.substr(0, single.find("events")));
  }
}

namespace {

struct Kept {
  const char* layout;
  const char* budget;
  Moment moment;
  sim::KeptModel model;
};

// Who is asked what compressions keep: a retention of its own as a step is launched; a source as it starts,
// as a real engine is; a source among others.
class Silent final : public OutcomeSource {
 public:
  void step(const LaunchStep&, uint32_t, StepValues* values) override { values->clear(); }
  void told(const Command&) override {}
};
enum class Asked : uint8_t { kAtLaunch, kAsItStarts, kAmongOthers };

// Scene `seed` with calls that keep part of their KV.
std::string kept_run(uint64_t seed, const Kept& kept, uint32_t repeat_max, Asked asked = Asked::kAsItStarts,
                     PartitionKind kind = PartitionKind::kUniform) {
  return in_child([&] {
    Scene scene(seed);
    std::vector<std::unique_ptr<sim::RetentionSource>> sources;
    std::vector<std::unique_ptr<sim::CombinedSource>> combined;
    std::vector<std::unique_ptr<sim::PartitionPrice>> partitions;
    Silent others;
    for (size_t i = 0; i < scene.options.engines.size(); ++i) {
      CoreConfig& core = scene.options.engines[i];
      core.repeat_max = repeat_max;
      core.pages_host = core.clean_pages_target = 0;
      core.pages_gpu *= 6;
      core.prefix_cache = false;
      PolicySet& set = core.policies;
      set.placement = "gpu";
      set.identity = "session";
      set.layout = kept.layout;
      set.budget = kept.budget;
      set.layout_spec = {.layers = 2, .kv_heads = 4, .heads_per_group = 2};
      BudgetSpec& budget = set.budget_spec;
      budget.chunk_tokens = 64;
      budget.cells = 90;
      budget.ratio = kWhole / 3;
      budget.kept_min = 40;
      budget.mu.assign(8, kWhole / 3);
      budget.sigma.assign(8, kWhole / 10);
      sources.push_back(std::make_unique<sim::RetentionSource>(core, kept.model, seed));
      sim::SimEngine& engine = scene.config.engines[i];
      combined.push_back(std::make_unique<sim::CombinedSource>(
          std::vector<OutcomeSource*>{&others, sources.back().get(), &others}));
      if (std::string(kept.layout) == "ragged") {
        sim::PartitionPriceSpec price;
        price.kind = kind;
        price.grid.sms = 4;
        price.layout = set.layout_spec;
        for (uint64_t head = 0; head < 8; ++head) price.held.push_back(kWhole / 8 * (head + 1));
        partitions.push_back(std::make_unique<sim::PartitionPrice>(price));
        engine.partition = partitions.back().get();
      }
      if (asked == Asked::kAtLaunch) engine.retention = sources.back().get();
      if (asked == Asked::kAsItStarts) engine.source = sources.back().get();
      if (asked == Asked::kAmongOthers) engine.source = combined.back().get();
    }
    scene.options.make_axes = [&](const CoreConfig& c) { return axes_with_scorer(c, kept.moment); };
    Talk talk(seed, 10, 4);
    const RunEnd end = sim::run_simulated(scene.config, scene.options, &talk, {});
    return summary(end, talk);
  });
}

}  // namespace

TEST_CASE("run: calls that keep part of their KV end alike, folded or not") {
  using sim::KeptModel;
  const Kept all[] = {{"ragged", "reserved", Moment::kChunkEnd, KeptModel::kFixed},
                      {"ragged", "released", Moment::kChunkEnd, KeptModel::kProfile},
                      {"ragged", "top_per_layer", Moment::kPromptEnd, KeptModel::kProfile},
                      {"compact", "uniform", Moment::kDecodeStep, KeptModel::kFixed},
                      {"page_mask_dead", "uniform", Moment::kPromptEnd, KeptModel::kFixed},
                      {"arena", "uniform", Moment::kAtNoTime, KeptModel::kFixed}};
  for (const Kept& kept : all) {
    CAPTURE(kept.layout);
    CAPTURE(kept.budget);
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      const std::string folded = kept_run(seed, kept, 1u << 20);
      REQUIRE(folded.find("idle true") != std::string::npos);
      REQUIRE(folded == kept_run(seed, kept, 1));
    }
  }
}

TEST_CASE("run: who says what is kept makes no difference, nor when he is asked") {
  using sim::KeptModel;
  const Kept all[] = {{"ragged", "released", Moment::kChunkEnd, KeptModel::kProfile},
                      {"ragged", "top_per_layer", Moment::kPromptEnd, KeptModel::kProfile},
                      {"page_mask_dead", "uniform", Moment::kPromptEnd, KeptModel::kFixed}};
  for (const Kept& kept : all) {
    CAPTURE(kept.layout);
    CAPTURE(kept.budget);
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      const std::string at_launch = kept_run(seed, kept, 1u << 20, Asked::kAtLaunch);
      REQUIRE(at_launch.find("idle true") != std::string::npos);
      REQUIRE(at_launch == kept_run(seed, kept, 1u << 20, Asked::kAsItStarts));
      REQUIRE(at_launch == kept_run(seed, kept, 1u << 20, Asked::kAmongOthers));
    }
  }
}

TEST_CASE("run: priced by how attention is cut, runs end alike, folded or not") {
  const Kept kept{"ragged", "reserved", Moment::kChunkEnd, sim::KeptModel::kFixed};
  for (const PartitionKind kind : {PartitionKind::kUniform, PartitionKind::kFlashInfer,
                                   PartitionKind::kStreamK, PartitionKind::kAotShares}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      CAPTURE(seed);
      const std::string folded = kept_run(seed, kept, 1u << 20, Asked::kAtLaunch, kind);
      REQUIRE(folded.find("idle true") != std::string::npos);
      REQUIRE(folded == kept_run(seed, kept, 1, Asked::kAtLaunch, kind));
    }
  }
}
