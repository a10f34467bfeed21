// Retrieval on CUDA: what moves, where it lies and which stream moves it changes no bit of what is computed
// (METHODS 6.4, F-1 to F-7; 7.9, X-8). Choices themselves are the definitions'
// (tests/kernels/page_choice_test.cu).

#include "engine/cuda/retrieved.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "engine/cpu/cpu_backend.h"
#include "engine/cuda/happens_before.h"
#include "engine/driver.h"
#include "engine/policy/registry.h"
#include "engine/recorder.h"
#include "tests/cpu/retrieval_run.h"
#include "tests/cpu/world_checks.h"
#include "tests/cuda/cuda_steps.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

const std::vector<RetrievalCall> kCalls = {
    {0, 400, 40}, {0, 90, 180}, {50, 333, 20}, {60, 30, 25}, {5'000, 257, 60}};

LlmSpec model_of(uint32_t head_dim, uint32_t query_heads, uint32_t kv_heads) {
  LlmSpec m = tiny_model("llama", query_heads, kv_heads);
  m.head_dim = head_dim, m.layers = 3, m.hidden = 256, m.intermediate = 256, m.vocab = 256;
  return m;
}

// In pages of 16: 1 sink, a window of 2, 4 to choose.
RetrievalSetting setting_of(const std::string& method, double tau, uint32_t layers_dense = 1) {
  RetrievalSetting setting;
  setting.retrieval = method;
  setting.page_tokens = 16, setting.pages_gpu = 120, setting.pages_host = 150, setting.step_tokens_max = 96;
  RetrievalSpec& spec = setting.spec;
  spec = retrieval_defaults(RetrievalMethod::kFreekv);
  spec.sink_tokens = 16, spec.window_tokens = 32, spec.budget_tokens = 112, spec.layers_dense = layers_dense;
  spec.tau_q32 = static_cast<int64_t>(tau * static_cast<double>(kOneQ32));
  if (method != "freekv") spec.speculation = false;
  return setting;
}

struct CudaOutcome {
  std::map<CallId, std::vector<float>> logits;
  LayerRecall recalled;  // sums
  uint64_t preemptions = 0, digest = 0;
};

class CudaListener final : public OutcomeSource {
 public:
  CudaListener(cuda::CudaEngine* engine, uint32_t vocab, bool finite, CudaOutcome* out)
      : engine_(engine), vocab_(vocab), finite_(finite), out_(out) {}
  void step(const LaunchStep& launch, uint32_t offset, StepValues* values) override {
    engine_->step(launch, offset, values);
    for (const LayerRecall& one : values->recalls) {
      LayerRecall& sum = out_->recalled;
      sum.blocking += one.blocking, sum.background += one.background, sum.corrected += one.corrected;
      sum.heads += one.heads, sum.chosen += one.chosen;
    }
    const std::vector<float> logits = engine_->logits();
    const auto samples = engine_->samples();
    for (size_t i = 0; i < samples.size(); ++i) {
      std::vector<float>& all = out_->logits[samples[i].call];
      for (size_t k = i * vocab_; k < (i + 1) * vocab_; ++k) {
        if (finite_ && !std::isfinite(logits[k]))
          FAIL_CHECK("not a number: a cell was read that nobody wrote");
        all.push_back(logits[k]);
      }
    }
  }
  void told(const Command& command) override {
    const auto* drop = std::get_if<DropCallState>(&command);
    out_->preemptions += drop != nullptr && drop->reason == DropCallState::Reason::kPreempted;
    engine_->told(command);
  }

 private:
  cuda::CudaEngine* const engine_;
  const uint32_t vocab_;
  const bool finite_;
  CudaOutcome* const out_;
};

CudaOutcome run_on_cuda(const RetrievalSetting& setting, const cuda::DeviceModel& model, const LlmSpec& llm,
                        const cuda::OrderTests& tests = {}) {
  CudaOutcome out;
  RunOptions options;
  options.check_invariants = true;
  options.engines = {core_of(setting)};
  const CoreConfig& core = options.engines[0];
  ArrivingCalls client(kCalls);
  cpu::IdentityTokens tokens({.seed = setting.seed, .unit_tokens = setting.page_tokens, .vocab = llm.vocab});
  cuda::CudaEngineConfig config;
  config.page_tokens = core.page_tokens, config.pages_gpu = core.pages_gpu,
  config.pages_host = core.pages_host;
  config.rows_max = core.step_tokens_max, config.samples_max = core.calls_max, config.poison = true;
  cuda::OwnedCache cache;
  if (setting.retrieval != "all") {
    const RetrievalMethod method = setting.retrieval == "quest"     ? RetrievalMethod::kQuest
                                   : setting.retrieval == "arkvale" ? RetrievalMethod::kArkvale
                                                                    : RetrievalMethod::kFreekv;
    REQUIRE(!cuda::check_retrieved(method, setting.spec, llm, core.page_tokens).has_value());
    Result<cuda::OwnedCache> made = cuda::make_retrieved(
        {method, setting.spec, tests},
        {config.page_tokens, config.pages_gpu, config.pages_host, config.rows_max, true}, llm);
    REQUIRE(made.has_value());
    cache = std::move(*made);
  }
  Result<std::unique_ptr<cuda::CudaEngine>> engine =
      cuda::CudaEngine::make(config, &model, &tokens, std::move(cache));
  REQUIRE(engine.has_value());
  CudaListener listener(engine->get(), llm.vocab, tests.left_out == cuda::Edge::kNone, &out);
  cpu::CpuBackend world({{setting.in_flight}}, &listener, drawn_times(setting.seed));
  Recorder recorder(options, {"retrieval", setting.seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &world, {&recorder});
  CHECK(end.idle);
  CHECK(client.finished == kCalls.size());
  check_replays(recorder.finish(end), end.digest);
  out.digest = end.digest;
  return out;
}

struct OnDevice {
  explicit OnDevice(const LlmSpec& spec)
      : llm(spec), weights(ModelWeights::random(spec, 11)), model(on_device(weights)) {}
  LlmSpec llm;
  ModelWeights weights;
  std::unique_ptr<cuda::DeviceModel> model;
};

}  // namespace

TEST_CASE("F-5 cuda: corrected speculation, blocking recall and pages that never moved give the same bits") {
  for (const auto& [dim, heads, kv] : {std::tuple{64u, 8u, 2u}, {128u, 4u, 4u}}) {
    for (const uint32_t dense : {0u, 1u}) {
      CAPTURE(dim);
      CAPTURE(dense);
      const OnDevice d(model_of(dim, heads, kv));
      const CudaOutcome still = run_on_cuda(setting_of("quest", 2, dense), *d.model, d.llm);
      const CudaOutcome blocking = run_on_cuda(setting_of("arkvale", 2, dense), *d.model, d.llm);
      const CudaOutcome corrected = run_on_cuda(setting_of("freekv", 2, dense), *d.model, d.llm);
      CHECK(blocking.logits == still.logits);
      CHECK(corrected.logits == still.logits);
      CHECK(still.recalled.blocking == 0);
      CHECK(blocking.recalled.blocking > 0);
      CHECK(corrected.recalled.blocking == blocking.recalled.blocking);
      CHECK(corrected.recalled.background == 0);
      CHECK(corrected.recalled.corrected > 0);
      MESSAGE("pages chosen " << blocking.recalled.chosen << ", recalled " << blocking.recalled.blocking);
    }
  }
}

TEST_CASE("F-6 cuda: with a budget beyond every call nothing moves, and the dense engine's bits come out") {
  const OnDevice d(model_of(64, 8, 2));
  RetrievalSetting setting = setting_of("freekv", 0.5);
  setting.spec.budget_tokens = 960, setting.pages_gpu = 200;
  RetrievalSetting dense = setting;
  dense.retrieval = "all", dense.pages_host = 0;
  const CudaOutcome retrieved = run_on_cuda(setting, *d.model, d.llm);
  CHECK(retrieved.logits == run_on_cuda(dense, *d.model, d.llm).logits);
  CHECK(retrieved.recalled.heads == 0);
  // And a small budget is another matter.
  CHECK(run_on_cuda(setting_of("freekv", 0.5), *d.model, d.llm).logits != retrieved.logits);
}

TEST_CASE(
    "F-7, X-8 cuda: streams that are late at random, either host layout: the same bits, all edges there") {
  const OnDevice d(model_of(64, 8, 2));
  for (const double tau : {-1.0, -0.1, 0.0}) {
    CAPTURE(tau);
    RetrievalSetting setting = setting_of("freekv", tau);
    const CudaOutcome expected = run_on_cuda(setting, *d.model, d.llm);
    CHECK(expected.recalled.background > 0);
    if (tau == 0) CHECK(expected.recalled.corrected > 0);
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(seed);
      setting.spec.host_layout = seed % 2 == 0 ? HostLayout::kHnd : HostLayout::kNhd;
      cuda::HappensBefore watch;
      const CudaOutcome late = run_on_cuda(setting, *d.model, d.llm, {.delays = seed, .watch = &watch});
      CHECK(late.logits == expected.logits);
      CHECK(late.recalled.background == expected.recalled.background);
      CHECK(watch.operations() > 1000);
      for (const std::string& finding : watch.findings()) FAIL_CHECK(finding);
    }
  }
}

TEST_CASE("X-8 cuda: the recorder finds each edge that is left out") {
  const OnDevice d(model_of(64, 8, 2));
  for (const cuda::Edge edge :
       {cuda::Edge::kAttended, cuda::Edge::kRecalled, cuda::Edge::kSealed, cuda::Edge::kOffloaded}) {
    CAPTURE(static_cast<int>(edge));
    cuda::HappensBefore watch;
    run_on_cuda(setting_of("freekv", 0), *d.model, d.llm, {.left_out = edge, .watch = &watch});
    CHECK(!watch.findings().empty());
  }
}

TEST_CASE("cuda: calls that are preempted and come back under retrieval end, with numbers") {
  const OnDevice d(model_of(64, 8, 2));
  uint64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    RetrievalSetting setting = setting_of("freekv", 0);
    setting.seed = seed, setting.pages_gpu = 34, setting.in_flight = 1 + seed % 2;
    cuda::HappensBefore watch;
    const CudaOutcome out = run_on_cuda(setting, *d.model, d.llm, {.delays = seed, .watch = &watch});
    preemptions += out.preemptions;
    for (const std::string& finding : watch.findings()) FAIL_CHECK(finding);
  }
  MESSAGE(preemptions << " preemptions");
  CHECK(preemptions > 0);
}
