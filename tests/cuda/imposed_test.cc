// Imposed outcomes on the GPU (engine/imposed_source.h): as many pages recalled, heads corrected and cells
// kept as were told, whatever the values say; what is computed stays what streams and slots cannot change.

#include <doctest/doctest.h>

#include "engine/cuda/caches.h"
#include "sim/behaviour_retention.h"
#include "tests/cpu/compress_run.h"
#include "tests/cuda/retrieved_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

sim::RetrievalBehaviour rates(double miss, double corrected) {
  const auto q32 = [](double x) { return static_cast<uint64_t>(x * static_cast<double>(kOneQ32)); };
  return {.seed = 3, .miss_q32 = q32(miss), .correction_q32 = {q32(corrected)}};
}

bool finite(const CudaOutcome& out) {
  for (const auto& [call, logits] : out.logits) {
    for (const float x : logits) {
      if (!std::isfinite(x)) return false;
    }
  }
  return !out.logits.empty();
}

// Compressions of one run on the GPU, on what a model says is kept.
struct Kept {
  std::vector<uint32_t> counts;
  std::vector<uint64_t> live;
  ImposedSource::Counts imposed;
  uint64_t digest = 0;
};

class KeptWatch final : public ImposableSource {
 public:
  KeptWatch(ImposableSource* engine, Kept* out) : engine_(*engine), out_(*out) {}
  void impose(const StepValues* given) override { engine_.impose(given); }
  void step(const LaunchStep& launch, uint32_t offset, StepValues* values) override {
    engine_.step(launch, offset, values);
    out_.counts.insert(out_.counts.end(), values->kept_counts.begin(), values->kept_counts.end());
    out_.live.insert(out_.live.end(), values->kept_live.begin(), values->kept_live.end());
  }
  void told(const Command& command) override { engine_.told(command); }

 private:
  ImposableSource& engine_;
  Kept& out_;
};

CoreConfig kept_config(const Method& method, const LlmSpec& llm) {
  CoreConfig config = config_of(method, llm);
  if (config.page_tokens != 1) config.page_tokens = config.unit_tokens = 16;
  BudgetSpec& budget = config.policies.budget_spec;
  budget.sinks = 4, budget.window = 8, budget.cells = 40, budget.chunk_tokens = 32;
  config.step_tokens_max = 96;
  return config;
}

// On the GPU, or (null) on the CPU engine.
Kept run_kept(const CoreConfig& config, const OnDevice& d, sim::KeptModel model, bool gpu) {
  Kept out;
  cpu::IdentityTokens tokens({.seed = 5, .unit_tokens = config.unit_tokens, .vocab = d.llm.vocab});
  const kernels::ScoreSpec score = score_of(config);
  const cpu::CompressedConfig own{.core = config, .score = score, .seed = 9};
  std::unique_ptr<ImposableSource> engine;
  if (gpu) {
    cuda::CudaEngineConfig made;
    made.page_tokens = config.page_tokens, made.pages_gpu = config.pages_gpu;
    made.rows_max = config.step_tokens_max, made.samples_max = config.calls_max, made.poison = true;
    cuda::CompressedOptions options;
    options.config = own;
    auto cache = cuda::make_compressed(options, {made.page_tokens, made.pages_gpu, 0, made.rows_max, true},
                                       &d.weights);
    REQUIRE(cache);
    auto cuda_engine = cuda::CudaEngine::make(made, d.model.get(), &tokens, std::move(*cache));
    REQUIRE(cuda_engine);
    engine = std::move(*cuda_engine);
  } else {
    auto cache = cpu::CompressedCache::make(own, {config.page_tokens, config.pages_gpu, 0, true}, &d.weights);
    REQUIRE(cache);
    engine = std::make_unique<cpu::CpuEngine>(cpu::CpuEngineConfig{}, &d.weights, &tokens, std::move(*cache));
  }
  sim::RetentionSource says(config, model, 77);
  KeptWatch watch(engine.get(), &out);
  ImposedSource told(&says, &watch);
  RunOptions options;
  options.check_invariants = true;
  options.engines = {config};
  ScriptClient client({.seed = 5,
                       .sessions = 3,
                       .calls_per_session = 2,
                       .unit_tokens = config.unit_tokens,
                       .prompt_tokens_max = 150,
                       .output_tokens_max = 20});
  cpu::CpuBackend world({{config.steps_in_flight_max}}, &told, drawn_times(5));
  const RunEnd end = run(options, tokens.watch(&client), &world, {});
  CHECK(end.idle);
  CHECK(client.content());
  out.imposed = told.kept(), out.digest = end.digest;
  return out;
}

}  // namespace

TEST_CASE("imposed cuda: any miss and correction rate is performed, in every step") {
  const OnDevice d(retrieval_model(64, 8, 2));
  const struct {
    const char* method;
    double miss, corrected;
  } rows[] = {{"freekv", 0, 0.3}, {"freekv", 0.05, 0.1}, {"freekv", 0.2, 1}, {"freekv", 0.5, 0},
              {"freekv", 1, 0.3}, {"arkvale", 0.2, 0},   {"arkvale", 1, 0.5}};
  for (const auto& [method, miss, corrected] : rows) {
    CAPTURE(method);
    CAPTURE(miss);
    CAPTURE(corrected);
    const CudaOutcome out = run_on_cuda(setting_of(method, 0), *d.model, d.llm, {}, rates(miss, corrected));
    CHECK(out.imposed.imposed > 100);
    CHECK(out.imposed.met == out.imposed.imposed);
    CHECK(finite(out));
    const LayerRecall& all = out.recalled;
    const bool speculates = std::string(method) == "freekv";
    if (!speculates) CHECK(all.corrected + all.background == 0);
    if (speculates && corrected == 1) CHECK(all.corrected == all.heads);
    if (speculates && corrected == 0) CHECK(all.corrected + all.blocking == 0);
    const auto moved = static_cast<double>(uint64_t{all.blocking} + all.background);
    const double rate = moved / static_cast<double>(all.chosen);
    CHECK((moved == 0) == (miss == 0));
    // Calls that are little longer than their arena cannot miss more than there is elsewhere.
    CHECK(rate <= miss + 0.01);
    if (miss <= 0.2) CHECK(rate == doctest::Approx(miss).epsilon(0.15));
  }
}

TEST_CASE("F-7, X-8 cuda imposed: late streams and preemption change no bit, and every edge is there") {
  const OnDevice d(retrieval_model(128, 4, 4));
  for (const std::string method : {"freekv", "arkvale"}) {
    for (const uint32_t pages : {120u, 34u}) {  // 34: calls are preempted
      CAPTURE(method);
      CAPTURE(pages);
      RetrievalSetting setting = setting_of(method, 0);
      setting.pages_gpu = pages, setting.in_flight = 2;
      const auto imposed = rates(0.5, 0.4);
      const CudaOutcome expected = run_on_cuda(setting, *d.model, d.llm, {}, imposed);
      CHECK((expected.preemptions > 0) == (pages == 34));
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        CAPTURE(seed);
        setting.spec.host_layout = seed % 2 == 0 ? HostLayout::kHnd : HostLayout::kNhd;
        cuda::HappensBefore watch;
        const CudaOutcome late =
            run_on_cuda(setting, *d.model, d.llm, {.delays = seed, .watch = &watch}, imposed);
        CHECK(late.digest == expected.digest);
        CHECK(late.logits == expected.logits);
        CHECK(watch.operations() > 1000);
        for (const std::string& finding : watch.findings()) FAIL_CHECK(finding);
      }
    }
  }
}

TEST_CASE("imposed cuda: heads keep as many cells as they are told, tokens stay where they are told") {
  const std::vector<Method> methods = {
      {"snapkv", "ada", "ragged", 1},          {"snapkv", "top_across_layers", "ragged", 2},
      {"fastkvzip", "released", "ragged", 2},  {"kvzip", "top_across_layers", "ragged", 1},
      {"critical_kv", "ada", "ragged", 1},     {"snapkv", "uniform", "page_mask_dead"},
      {"intent_rule", "uniform", "slot_dead"}, {"intent_residual", "ratio", "page_mask_dead"}};
  const OnDevice d(cuda_models()[4]);
  for (const Method& method : methods) {
    CAPTURE(method.scorer);
    CAPTURE(method.budget);
    CAPTURE(method.layout);
    const CoreConfig config = kept_config(method, d.llm);
    const bool holes = config.policies.layout != "ragged";
    for (const sim::KeptModel model : {sim::KeptModel::kFixed, sim::KeptModel::kProfile}) {
      const Kept gpu = run_kept(config, d, model, true), cpu = run_kept(config, d, model, false);
      CHECK(gpu.imposed.imposed > 0);
      CHECK(gpu.imposed.met == gpu.imposed.imposed);
      CHECK(cpu.imposed.met == cpu.imposed.imposed);
      CHECK(gpu.digest == cpu.digest);
      CHECK(gpu.counts == cpu.counts);
      CHECK(gpu.live == cpu.live);
      CHECK((holes ? gpu.live.size() : gpu.counts.size()) > 0);
    }
  }
}
