// Forced outcomes on the GPU (engine/runtime/forced_outcomes.h): the forced numbers of pages are recalled,
// of heads corrected and of KV entries retained, regardless of the data; streams and slots change no
// computed bit.

#include <doctest/doctest.h>

#include "engine/cuda/caches.h"
#include "sim/behaviour/behaviour_retention.h"
#include "tests/unit/cpu_compression/compress_run.h"
#include "tests/unit/cuda_engine/retrieved_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

sim::RetrievalBehaviour rates(double miss, double corrected) {
  const auto q32 = [](double x) { return static_cast<uint64_t>(x * static_cast<double>(kOneQ32)); };
  return {.seed = 3, .miss_q32 = q32(miss), .correction_q32 = {q32(corrected)}};
}

bool finite(const CudaOutcome& out) {
  for (const auto& [request, logits] : out.logits) {
    for (const float x : logits) {
      if (!std::isfinite(x)) return false;
    }
  }
  return !out.logits.empty();
}

// Compressions of one run on the GPU, with counts drawn by a behaviour model.
struct Retained {
  std::vector<uint32_t> counts;
  std::vector<uint64_t> live;
  ForcedOutcomes::Counts forced_outcome;
  uint64_t digest = 0;
};

class RetainedWatch final : public ForcibleSource {
 public:
  RetainedWatch(ForcibleSource* engine, Retained* out) : engine_(*engine), out_(*out) {}
  void force_outcomes(const DataOutcomes* given) override { engine_.force_outcomes(given); }
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    engine_.step(launch, offset, values);
    out_.counts.insert(out_.counts.end(), values->retained_counts.begin(), values->retained_counts.end());
    out_.live.insert(out_.live.end(), values->retained_live.begin(), values->retained_live.end());
  }
  void notify(const Command& command) override { engine_.notify(command); }

 private:
  ForcibleSource& engine_;
  Retained& out_;
};

CoreConfig retained_config(const Method& method, const LlmSpec& llm) {
  CoreConfig config = config_of(method, llm);
  if (config.page_tokens != 1) config.page_tokens = config.unit_tokens = 16;
  BudgetSpec& budget = config.policies.budget_spec;
  budget.sinks = 4, budget.window = 8, budget.kv_entries = 40, budget.chunk_tokens = 32;
  config.step_tokens_max = 96;
  return config;
}

// On the GPU, or on the CPU engine if not `gpu`.
Retained run_retained(const CoreConfig& config, const OnDevice& d, sim::RetentionModel model, bool gpu) {
  Retained out;
  cpu::IdentityTokens tokens({.seed = 5, .unit_tokens = config.unit_tokens, .vocab = d.llm.vocab});
  const kernels::ScoreSpec score = score_of(config);
  const cpu::CompressedConfig own{.core = config, .score = score, .seed = 9};
  std::unique_ptr<ForcibleSource> engine;
  if (gpu) {
    cuda::CudaEngineConfig made;
    made.page_tokens = config.page_tokens, made.pages_gpu = config.pages_gpu;
    made.rows_max = config.step_tokens_max, made.samples_max = config.requests_max, made.poison = true;
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
  sim::RetentionSource message(config, model, 77);
  RetainedWatch watch(engine.get(), &out);
  ForcedOutcomes forcing(&message, &watch);
  RunOptions options;
  options.check_invariants = true;
  options.engines = {config};
  ScriptClient client({.seed = 5,
                       .sessions = 3,
                       .requests_per_session = 2,
                       .unit_tokens = config.unit_tokens,
                       .prompt_tokens_max = 150,
                       .output_tokens_max = 20});
  cpu::CpuBackend backend({{config.steps_in_flight_max}}, &forcing, drawn_times(5));
  const RunEnd end = run(options, tokens.watch(&client), &backend, {});
  CHECK(end.idle);
  CHECK(client.content());
  out.forced_outcome = forcing.retained(), out.digest = end.digest;
  return out;
}

}  // namespace

TEST_CASE("forced cuda: any miss and correction rate is performed, in every step") {
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
    CHECK(out.forced_outcome.forced_outcome > 100);
    CHECK(out.forced_outcome.met == out.forced_outcome.forced_outcome);
    CHECK(finite(out));
    const LayerRecall& all = out.recalled;
    const bool speculates = std::string(method) == "freekv";
    if (!speculates) CHECK(all.corrected + all.background == 0);
    if (speculates && corrected == 1) CHECK(all.corrected == all.heads);
    if (speculates && corrected == 0) CHECK(all.corrected + all.blocking == 0);
    const auto moved = static_cast<double>(uint64_t{all.blocking} + all.background);
    const double rate = moved / static_cast<double>(all.chosen);
    CHECK((moved == 0) == (miss == 0));
    // Requests that are little longer than their resident pages cannot miss more pages than there are
    // elsewhere.
    CHECK(rate <= miss + 0.01);
    if (miss <= 0.2) CHECK(rate == doctest::Approx(miss).epsilon(0.15));
  }
}

TEST_CASE(
    "F-7, X-8 cuda forced: late streams and preemption change no bit, and every dependency is present") {
  const OnDevice d(retrieval_model(128, 4, 4));
  for (const std::string method : {"freekv", "arkvale"}) {
    for (const uint32_t pages : {120u, 34u}) {  // 34: requests are preempted
      CAPTURE(method);
      CAPTURE(pages);
      RetrievalSetting setting = setting_of(method, 0);
      setting.pages_gpu = pages, setting.in_flight = 2;
      const auto forced_outcome = rates(0.5, 0.4);
      const CudaOutcome expected = run_on_cuda(setting, *d.model, d.llm, {}, forced_outcome);
      CHECK((expected.preemptions > 0) == (pages == 34));
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        CAPTURE(seed);
        setting.copies.layout = seed % 2 == 0 ? HostPageLayout::kHnd : HostPageLayout::kNhd;
        cuda::HappensBefore watch;
        const CudaOutcome late =
            run_on_cuda(setting, *d.model, d.llm, {.delays = seed, .watch = &watch}, forced_outcome);
        CHECK(late.digest == expected.digest);
        CHECK(late.logits == expected.logits);
        CHECK(watch.operations() > 1000);
        for (const std::string& finding : watch.findings()) FAIL_CHECK(finding);
      }
    }
  }
}

TEST_CASE("forced cuda: heads retain the forced number of KV entries, at the forced positions") {
  const std::vector<Method> methods = {
      {"snapkv", "ada", "ragged", 1},          {"snapkv", "top_across_layers", "ragged", 2},
      {"fastkvzip", "released", "ragged", 2},  {"kvzip", "top_across_layers", "ragged", 1},
      {"critical_kv", "ada", "ragged", 1},     {"snapkv", "uniform", "page_mask"},
      {"intent_rule", "uniform", "slot_mask"}, {"intent_residual", "ratio", "page_mask"}};
  const OnDevice d(cuda_models()[4]);
  for (const Method& method : methods) {
    CAPTURE(method.scorer);
    CAPTURE(method.budget);
    CAPTURE(method.layout);
    const CoreConfig config = retained_config(method, d.llm);
    const bool dropped_slots = config.policies.layout != "ragged";
    for (const sim::RetentionModel model : {sim::RetentionModel::kFixed, sim::RetentionModel::kProfile}) {
      const Retained gpu = run_retained(config, d, model, true), cpu = run_retained(config, d, model, false);
      CHECK(gpu.forced_outcome.forced_outcome > 0);
      CHECK(gpu.forced_outcome.met == gpu.forced_outcome.forced_outcome);
      CHECK(cpu.forced_outcome.met == cpu.forced_outcome.forced_outcome);
      CHECK(gpu.digest == cpu.digest);
      CHECK(gpu.counts == cpu.counts);
      CHECK(gpu.live == cpu.live);
      CHECK((dropped_slots ? gpu.live.size() : gpu.counts.size()) > 0);
    }
  }
}
