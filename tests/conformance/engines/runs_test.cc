// Conformance of engines in whole runs: a policy under pressure and ScriptClient. Whatever happens to a
// request (chunks, shared prefixes, preemption by recompute or swap, the host and disk tiers, cancellations,
// concurrent requests), its logits are those that it has alone; and each log replays.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/common/cpu_backend.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/methods/registry.h"
#include "engine/recorder/recorder.h"
#include "engine/runtime/driver.h"
#include "tests/conformance/engines/definition.h"
#include "tests/support/script_client.h"
#include "tests/unit/cpu_engine/backend_checks.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

struct Totals {
  uint64_t requests = 0, preemptions = 0, loads = 0, swap_ins = 0, from_disk = 0, reused = 0;
  double worst = 0;  // relative error of logits
};

struct History {
  std::vector<uint32_t> tokens;                   // all input tokens
  std::map<uint32_t, std::vector<float>> logits;  // by position of the sampled token
};

using Engines = std::vector<std::unique_ptr<TestedEngine>>;

std::vector<OutcomeSource*> sources_of(const Engines& engines) {
  std::vector<OutcomeSource*> out;
  for (const auto& engine : engines) out.push_back(engine.get());
  return out;
}

// Performs steps and records what each request read and computed.
class Witness final : public OutcomeSource {
 public:
  Witness(const Engines& engines, const cpu::TokenIds* tokens, uint32_t vocab, Totals* totals)
      : engines_(engines), all_(sources_of(engines)), tokens_(*tokens), vocab_(vocab), totals_(*totals) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    TestedEngine& engine = *engines_[raw(launch.engine)];
    engine.step(launch, offset, values);
    if (offset == 0) totals_.reused += launch.prefix_hits.size();
    const std::vector<float> logits = engine.logits();
    const std::vector<TestedEngine::Sample> samples = engine.samples();
    REQUIRE(logits.size() == samples.size() * vocab_);
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto first = logits.begin() + static_cast<ptrdiff_t>(i * vocab_);
      CHECK(samples[i].token == std::max_element(first, first + vocab_) - first);
      History& history = requests[samples[i].request];
      history.tokens.clear();
      for (uint32_t p = 0; p < samples[i].position; ++p)
        history.tokens.push_back(tokens_.token(samples[i].request, p));
      history.logits[samples[i].position].assign(first, first + vocab_);
    }
  }
  void notify(const Command& command) override {
    const auto* drop = std::get_if<DropRequestState>(&command);
    totals_.preemptions += drop != nullptr && drop->reason == DropRequestState::Reason::kPreempted;
    if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
      totals_.loads += transfer->kind == TransferKind::kLoad;
      totals_.from_disk += transfer->source_tier == Tier::kDisk;
      totals_.swap_ins += transfer->kind == TransferKind::kSwapIn;
    }
    all_.notify(command);
  }

  std::map<RequestId, History> requests;

 private:
  const Engines& engines_;
  cpu::EngineSources all_;
  const cpu::TokenIds& tokens_;
  const ptrdiff_t vocab_;
  Totals& totals_;
};

enum class Pressure { kRecompute, kSwap, kDisk };

CoreConfig config_of(uint64_t seed, Pressure pressure) {
  Prng prng(draw({seed, 77}));
  CoreConfig config;
  const uint32_t pages[] = {4, 8, 16, 32};
  config.page_tokens = pressure == Pressure::kDisk ? 4 : pages[prng.range(0, 3)];
  config.unit_tokens = prng.chance(1, 2) ? config.page_tokens : 2;
  config.pages_gpu = static_cast<uint32_t>(prng.range(120, 280)) / config.page_tokens;
  if (pressure != Pressure::kRecompute || prng.chance(2, 3)) {
    config.policies.placement = "host";
    config.pages_host = config.pages_gpu;
    config.offload_pages_target = config.pages_gpu / 2;
    config.offload_batch_pages = 4;
  }
  config.requests_max = static_cast<uint32_t>(prng.range(2, 6));
  config.step_tokens_max = static_cast<uint32_t>(prng.range(8, 64));
  config.steps_in_flight_max = static_cast<uint32_t>(prng.range(1, 2));
  config.batch_order = prng.chance(1, 2) ? BatchOrder::kDecodeFirst : BatchOrder::kMixed;
  if (prng.chance(1, 2)) config.capture_sizes = {1, 2, 4, 8};
  if (pressure == Pressure::kSwap) {
    config.preemption = PreemptionKind::kSwap;
    config.pages_gpu = static_cast<uint32_t>(prng.range(80, 160)) / config.page_tokens;
    config.pages_host = 4 * config.pages_gpu;
    config.offload_pages_target = prng.chance(1, 2) ? 0 : config.pages_gpu / 4;
  } else if (pressure == Pressure::kDisk) {
    config.unit_tokens = config.page_tokens;
    config.pages_gpu = static_cast<uint32_t>(prng.range(24, 40));
    config.pages_host = static_cast<uint32_t>(prng.range(2, 12));
    config.pages_disk = static_cast<uint32_t>(prng.range(10, 60));
    config.offload_pages_target = config.pages_gpu / 2;
    config.offload_batch_pages = 3;
    config.spill_pages_target = config.pages_host;
  }
  KVT_CHECK(!validate_core_config(config).has_value());
  return config;
}

void check_histories(const ModelWeights& weights, const Witness& witness, Totals* totals) {
  for (const auto& [request, history] : witness.requests) {
    CAPTURE(raw(request));
    const Definition alone(weights, history.tokens);
    for (const auto& [position, logits] : history.logits)
      totals->worst = std::max(totals->worst, alone.check(logits, position));
  }
  totals->requests += witness.requests.size();
}

void check_run(uint64_t seed, Pressure pressure, Totals* totals) {
  CAPTURE(seed);
  const TestedKind kind = tested_kind();
  const LlmSpec llm = kind.models[seed % kind.models.size()];
  const ModelWeights weights = ModelWeights::random(llm, seed);
  const std::unique_ptr<TestedModel> model = tested_model(weights);
  RunOptions options;
  options.check_invariants = true;
  const CoreConfig config = config_of(seed, pressure);
  const bool disk = pressure == Pressure::kDisk;
  ScriptClient client({.seed = seed,
                       .sessions = disk ? 7u : 4u,
                       .requests_per_session = disk ? 5u : 3u,
                       .unit_tokens = config.unit_tokens,
                       .prompt_tokens_max = 60,
                       .output_tokens_max = 20,
                       .cancels_per_100 = seed % 3 == 0 ? 30u : 0u});
  cpu::IdentityTokens tokens({.seed = seed, .unit_tokens = config.unit_tokens, .vocab = llm.vocab});
  Engines engines;
  cpu::CpuBackendOptions backend_options;
  for (uint16_t i = 0; i < 1 + seed % 2; ++i) {
    options.engines.push_back(config);
    options.engines.back().engine = EngineId{i};
    engines.push_back(model->engine({.engine = EngineId{i},
                                     .page_tokens = config.page_tokens,
                                     .pages_gpu = config.pages_gpu,
                                     .pages_host = config.pages_host,
                                     .pages_disk = config.pages_disk,
                                     .rows_max = config.step_tokens_max,
                                     .samples_max = config.requests_max,
                                     .capture_sizes = config.capture_sizes,
                                     .concurrent_copies = kind.concurrent_copies},
                                    &tokens));
    backend_options.steps_in_flight_max.push_back(config.steps_in_flight_max);
  }
  if (seed % 2 == 0) backend_options.host_clock = drawn_clock(seed);
  if (kind.concurrent_copies) {
    backend_options.copy_time = [&](EngineId engine, TransferId transfer) {
      return engines[raw(engine)]->copy_time(transfer);
    };
  }
  Witness witness(engines, &tokens, llm.vocab, totals);
  cpu::CpuBackend backend(backend_options, &witness, drawn_times(seed));
  Recorder recorder(options, {"swarm", seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &backend, {&recorder});
  CHECK(end.idle);
  CHECK(client.content());
  check_replays(recorder.finish(end), end.digest);
  check_histories(weights, witness, totals);
}

Totals check_runs(Pressure pressure, uint64_t first, uint64_t last) {
  Totals totals;
  for (uint64_t seed = first; seed <= last; ++seed) check_run(seed, pressure, &totals);
  MESSAGE(totals.requests << " requests, " << totals.reused << " prefix hits, " << totals.preemptions
                          << " preemptions, " << totals.loads << " loads, " << totals.swap_ins
                          << " swap-ins, " << totals.from_disk
                          << " loads from the disk; worst relative error " << totals.worst);
  return totals;
}

}  // namespace

TEST_CASE("X-2 X-9 runs: every request computes what it computes alone, and its log replays") {
  const Totals totals = check_runs(Pressure::kRecompute, 1, 40);
  CHECK(totals.reused > 20);
  CHECK(totals.preemptions > 0);
  CHECK(totals.loads > 0);
}

TEST_CASE("X-6 runs: requests that were swapped out continue unchanged") {
  CHECK(check_runs(Pressure::kSwap, 41, 70).swap_ins > 5);
}

TEST_CASE("X-2 X-6 runs: prefixes that were on a disk are unchanged") {
  if (!tested_kind().disk_tier) return;
  CHECK(check_runs(Pressure::kDisk, 81, 110).from_disk > 20);
}
