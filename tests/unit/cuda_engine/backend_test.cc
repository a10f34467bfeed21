// The whole loop on the GPU: a policy under pressure and ScriptClient. Whatever happens to a request
// (chunks, shared prefixes, preemption, the host tier during steps, cancellations, concurrent requests), its
// logits equal those that the CPU engine computes for it alone, within rounding.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "engine/common/cpu_backend.h"
#include "engine/methods/registry.h"
#include "engine/recorder/recorder.h"
#include "engine/recorder/recorder_replay.h"
#include "engine/runtime/driver.h"
#include "tests/support/script_client.h"
#include "tests/unit/cuda_engine/cuda_steps.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

struct History {
  std::vector<uint32_t> tokens;                   // all input tokens
  std::map<uint32_t, std::vector<float>> logits;  // by position of the sampled token
  uint32_t prompt = 0;
};

using Engines = std::vector<std::unique_ptr<cuda::CudaEngine>>;

std::vector<OutcomeSource*> sources_of(const Engines& engines) {
  std::vector<OutcomeSource*> out;
  for (const auto& engine : engines) out.push_back(engine.get());
  return out;
}

// Performs steps and records each request's tokens and logits.
class Witness final : public OutcomeSource {
 public:
  Witness(const Engines& engines, const cpu::TokenIds* tokens, uint32_t vocab)
      : engines_(engines), all_(sources_of(engines)), tokens_(*tokens), vocab_(vocab) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    cuda::CudaEngine& engine = *engines_[raw(launch.engine)];
    engine.step(launch, offset, values);
    const std::vector<float> logits = engine.logits();
    size_t at = 0;
    for (const auto& sample : engine.samples()) {
      History& history = requests[sample.request];
      history.prompt = tokens_.prompt_tokens(sample.request);
      history.tokens.clear();
      for (uint32_t p = 0; p < sample.position; ++p)
        history.tokens.push_back(tokens_.token(sample.request, p));
      const auto first = logits.begin() + static_cast<ptrdiff_t>(at * vocab_);
      history.logits[sample.position].assign(first, first + vocab_);
      ++at;
    }
  }
  void notify(const Command& command) override {
    const auto* drop = std::get_if<DropRequestState>(&command);
    preemptions += drop != nullptr && drop->reason == DropRequestState::Reason::kPreempted;
    const auto* transfer = std::get_if<StartTransfer>(&command);
    recalls += transfer != nullptr && transfer->kind == TransferKind::kLoad;
    all_.notify(command);
  }

  std::map<RequestId, History> requests;
  uint32_t preemptions = 0, recalls = 0;

 private:
  const Engines& engines_;
  cpu::EngineSources all_;
  const cpu::TokenIds& tokens_;
  const uint32_t vocab_;
};

CoreConfig config_of(uint64_t seed) {
  Prng prng(draw({seed, 78}));
  CoreConfig config;
  const uint32_t pages[] = {4, 16, 16, 32};
  config.page_tokens = pages[prng.range(0, 3)];
  config.unit_tokens = prng.chance(1, 2) ? config.page_tokens : 2;
  config.pages_gpu = static_cast<uint32_t>(prng.range(160, 400)) / config.page_tokens;
  if (prng.chance(2, 3)) {
    config.policies.placement = "host";
    config.pages_host = config.pages_gpu;
    config.offload_pages_target = config.pages_gpu / 2;
    config.offload_batch_pages = 4;
  }
  config.requests_max = static_cast<uint32_t>(prng.range(2, 6));
  config.step_tokens_max = static_cast<uint32_t>(prng.range(8, 64));
  config.steps_in_flight_max = static_cast<uint32_t>(prng.range(1, 2));
  if (prng.chance(1, 2)) config.capture_sizes = {1, 2, 4, 8};
  KVT_CHECK(!validate_core_config(config).has_value());
  return config;
}

struct Totals {
  uint64_t requests = 0, preemptions = 0, recalls = 0;
  double worst = 0;
};

void compare(const LlmSpec& llm, const ModelWeights& weights, const Witness& witness, Totals* totals) {
  for (const auto& [request, history] : witness.requests) {
    CAPTURE(raw(request));
    GivenTokens given;
    given.give(request, history.tokens, history.prompt);
    Steps alone({.page_tokens = 16, .pages_gpu = 60, .poison = true}, &weights, &given, 1);
    alone.begin(request);
    std::vector<float> logits = alone.run({{request, history.prompt}});
    for (uint32_t position = history.prompt;; ++position) {
      const auto got = history.logits.find(position);
      if (got != history.logits.end()) {
        const double error = relative_error(got->second, logits);
        CHECK(error < bf16_tolerance(llm));
        if (!(error <= totals->worst)) totals->worst = error;
      }
      if (position >= history.tokens.size()) break;
      logits = alone.run({{request, 1}});
    }
  }
}

void check_run(uint64_t seed, Totals* totals) {
  CAPTURE(seed);
  const LlmSpec llm = cuda_models()[seed % 8];
  const ModelWeights weights = ModelWeights::random(llm, seed);
  const std::unique_ptr<cuda::DeviceModel> device = on_device(weights);
  RunOptions options;
  options.check_invariants = true;
  for (uint16_t i = 0; i < 1 + seed % 2; ++i) {
    options.engines.push_back(config_of(seed));
    options.engines.back().engine = EngineId{i};
  }
  const CoreConfig& config = options.engines[0];
  ScriptClient client({.seed = seed,
                       .sessions = 4,
                       .requests_per_session = 3,
                       .unit_tokens = config.unit_tokens,
                       .prompt_tokens_max = 60,
                       .output_tokens_max = 20,
                       .cancels_per_100 = seed % 3 == 0 ? 30u : 0u});
  cpu::IdentityTokens tokens({.seed = seed, .unit_tokens = config.unit_tokens, .vocab = llm.vocab});
  Engines made;
  cpu::CpuBackendOptions backend_options;
  for (const CoreConfig& engine : options.engines) {
    cuda::CudaEngineConfig own;
    own.engine = engine.engine, own.page_tokens = engine.page_tokens;
    own.pages_gpu = engine.pages_gpu, own.pages_host = engine.pages_host;
    own.rows_max = engine.step_tokens_max, own.samples_max = engine.requests_max;
    own.row_sizes = engine.capture_sizes;
    own.concurrent_copies = own.poison = true;
    Result<std::unique_ptr<cuda::CudaEngine>> one = cuda::CudaEngine::make(own, device.get(), &tokens);
    REQUIRE(one.has_value());
    made.push_back(std::move(*one));
    backend_options.steps_in_flight_max.push_back(engine.steps_in_flight_max);
  }
  backend_options.copy_time = [&](EngineId engine, TransferId transfer) {
    return made[raw(engine)]->copy_time(transfer);
  };
  Witness witness(made, &tokens, llm.vocab);
  cpu::CpuBackend backend(backend_options, &witness);
  Recorder recorder(options, {"swarm", seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &backend, {&recorder});
  CHECK(end.idle);
  CHECK(client.content());
  const std::string bytes = recorder.finish(end);
  const Result<Log> log = read_log("log", bytes);
  REQUIRE(log);
  const Result<Replayed> replayed = replay("log", *log, {});
  REQUIRE(replayed);
  CHECK(replayed->end.digest == end.digest);
  compare(llm, weights, witness, totals);
  totals->requests += witness.requests.size();
  totals->preemptions += witness.preemptions;
  totals->recalls += witness.recalls;
}

}  // namespace

TEST_CASE("X-2 cuda backend: every request's logits equal those it has alone, and its log replays") {
  Totals totals;
  for (uint64_t seed = 1; seed <= 40; ++seed) check_run(seed, &totals);
  MESSAGE(totals.requests << " requests, " << totals.preemptions << " preemptions, " << totals.recalls
                          << " recalls; worst relative error of logits " << totals.worst);
  CHECK(totals.preemptions > 0);
  CHECK(totals.recalls > 0);
}
