// ShadowKV and InfiniGen on CUDA beside the CPU engine: both are driven by the same launches, so what one
// reads and the other does not shows. Scores are of rows in bf16: where two pages are nearly as good, the two
// choose differently, and that sample's logits differ by what a page weighs.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/cpu/cpu_backend.h"
#include "engine/cpu/retrieved_cache.h"
#include "engine/cuda/retrieved.h"
#include "engine/driver.h"
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

// In pages of 16: 1 sink, a window of 2, 4 to choose; ShadowKV keeps 2 more.
RetrievalSetting setting_of(RetrievalMethod method) {
  RetrievalSetting setting;
  const bool shadow = method == RetrievalMethod::kShadowkv;
  setting.retrieval = shadow ? "shadowkv" : "infinigen";
  setting.page_tokens = 16, setting.pages_gpu = 160, setting.pages_host = 150, setting.step_tokens_max = 96;
  RetrievalSpec& spec = setting.spec;
  spec = retrieval_defaults(method);
  spec.sink_tokens = 16, spec.window_tokens = 32, spec.budget_tokens = 112;
  spec.extra_tokens = shadow ? 32 : 0, spec.layers_dense = 1, spec.rank = 24;
  return setting;
}

struct Compared {
  std::vector<double> errors;  // of every sample
  uint64_t samples_that_chose = 0, blocking_cpu = 0, blocking_gpu = 0, chosen_cpu = 0, chosen_gpu = 0;
  uint64_t preemptions = 0;
  std::vector<std::vector<float>> logits;  // of the GPU
};

// Both engines perform every step; the CPU engine's values count.
class BothEngines final : public OutcomeSource {
 public:
  BothEngines(cuda::CudaEngine* gpu, cpu::CpuEngine* cpu, uint32_t vocab, Compared* out)
      : gpu_(*gpu), cpu_(*cpu), vocab_(vocab), out_(*out) {}
  void step(const LaunchStep& launch, uint32_t offset, StepValues* values) override {
    StepValues same;
    gpu_.step(launch, offset, &same);
    cpu_.step(launch, offset, values);
    for (const LayerRecall& one : same.recalls)
      out_.blocking_gpu += one.blocking, out_.chosen_gpu += one.chosen;
    for (const LayerRecall& one : values->recalls)
      out_.blocking_cpu += one.blocking, out_.chosen_cpu += one.chosen,
          out_.samples_that_chose += one.heads > 0;
    const std::vector<float> got = gpu_.logits();
    out_.logits.push_back(got);
    for (size_t i = 0; i * vocab_ < got.size(); ++i) {
      const auto row = [&](const auto& all) {
        const auto first = all.begin() + static_cast<ptrdiff_t>(i * vocab_);
        return std::vector<float>(first, first + static_cast<ptrdiff_t>(vocab_));
      };
      for (const float x : row(got)) {
        if (!std::isfinite(x)) FAIL_CHECK("not a number: a cell was read that nobody wrote");
      }
      out_.errors.push_back(relative_error(row(got), row(cpu_.logits())));
    }
  }
  void told(const Command& command) override {
    const auto* drop = std::get_if<DropCallState>(&command);
    out_.preemptions += drop != nullptr && drop->reason == DropCallState::Reason::kPreempted;
    gpu_.told(command), cpu_.told(command);
  }

 private:
  cuda::CudaEngine& gpu_;
  cpu::CpuEngine& cpu_;
  const size_t vocab_;
  Compared& out_;
};

Compared run_both(const RetrievalSetting& setting, RetrievalMethod method, const LlmSpec& llm) {
  Compared out;
  const ModelWeights weights = ModelWeights::random(llm, 11);
  const std::unique_ptr<cuda::DeviceModel> model = on_device(weights);
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
  REQUIRE(!cuda::check_retrieved(method, setting.spec, llm, core.page_tokens).has_value());
  Result<cuda::OwnedCache> cache = cuda::make_retrieved(
      {.method = method, .spec = setting.spec, .weights = &weights},
      {config.page_tokens, config.pages_gpu, config.pages_host, config.rows_max, true}, llm);
  REQUIRE(cache.has_value());
  auto gpu = cuda::CudaEngine::make(config, model.get(), &tokens, std::move(*cache));
  REQUIRE(gpu.has_value());
  auto kept = cpu::RetrievedCache::make({core.page_tokens, core.pages_gpu, core.pages_host, true}, &weights,
                                        {.method = method, .spec = setting.spec});
  REQUIRE(kept.has_value());
  cpu::CpuEngine cpu({}, &weights, &tokens, std::move(*kept));
  BothEngines both(gpu->get(), &cpu, llm.vocab, &out);
  cpu::CpuBackend world({{setting.in_flight}}, &both, drawn_times(setting.seed));
  Recorder recorder(options, {"chosen", setting.seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &world, {&recorder});
  CHECK(end.idle);
  CHECK(client.finished == kCalls.size());
  check_replays(recorder.finish(end), end.digest);
  std::sort(out.errors.begin(), out.errors.end());
  return out;
}

double quantile(const std::vector<double>& sorted, double at) {
  return sorted[static_cast<size_t>(at * static_cast<double>(sorted.size() - 1))];
}

}  // namespace

TEST_CASE("cuda: ShadowKV and InfiniGen choose, move and read what the CPU engine does, but for near ties") {
  for (const RetrievalMethod method : {RetrievalMethod::kShadowkv, RetrievalMethod::kInfinigen}) {
    const RetrievalSetting setting = setting_of(method);
    CAPTURE(setting.retrieval);
    for (const LlmSpec& llm :
         {model_of(64, 8, 2), model_of(128, 4, 1)}) {  // 128 numbers: eigenvectors are slow
      const Compared got = run_both(setting, method, llm);
      MESSAGE(setting.retrieval << ", heads of " << llm.head_dim << ": relative error of logits, median "
                                << quantile(got.errors, 0.5) << ", 90 % " << quantile(got.errors, 0.9)
                                << ", worst " << got.errors.back() << "; pages recalled " << got.blocking_gpu
                                << " of " << got.blocking_cpu << ", chosen " << got.chosen_gpu << " of "
                                << got.chosen_cpu);
      CHECK(got.samples_that_chose > 300);
      CHECK(quantile(got.errors, 0.5) < bf16_tolerance(llm));
      CHECK(std::abs(static_cast<double>(got.blocking_gpu) / static_cast<double>(got.blocking_cpu) - 1) <
            0.02);
      CHECK(std::abs(static_cast<double>(got.chosen_gpu) / static_cast<double>(got.chosen_cpu) - 1) < 0.02);
    }
  }
}

TEST_CASE("F-6 cuda: with a budget beyond every call ShadowKV and InfiniGen are dense attention") {
  for (const RetrievalMethod method : {RetrievalMethod::kShadowkv, RetrievalMethod::kInfinigen}) {
    RetrievalSetting setting = setting_of(method);
    CAPTURE(setting.retrieval);
    setting.spec.budget_tokens = 960, setting.pages_gpu = 200;
    const LlmSpec llm = model_of(64, 8, 2);
    const Compared got = run_both(setting, method, llm);
    CHECK(got.samples_that_chose == 0);
    CHECK(got.blocking_gpu == 0);
    CHECK(got.errors.back() < bf16_tolerance(llm));
  }
}

TEST_CASE("cuda: calls that are preempted and come back under ShadowKV and InfiniGen end, with numbers") {
  for (const RetrievalMethod method : {RetrievalMethod::kShadowkv, RetrievalMethod::kInfinigen}) {
    uint64_t preemptions = 0;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      RetrievalSetting setting = setting_of(method);
      setting.seed = seed, setting.pages_gpu = 40, setting.in_flight = 1 + seed % 2;
      preemptions += run_both(setting, method, model_of(64, 8, 2)).preemptions;
    }
    MESSAGE(preemptions << " preemptions");
    CHECK(preemptions > 0);
  }
}
