#include <utility>

#include "engine/base/check.h"
#include "engine/cpu/compression/compressed_cache.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/packed/mixed_precision_cache.h"
#include "engine/cpu/paged_cache.h"
#include "tests/conformance/engines/tested_engine.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"

namespace kvtwin::testing {
namespace {

class Engine final : public TestedEngine {
 public:
  Engine(const cpu::CpuEngineConfig& config, const ModelWeights& weights, const cpu::TokenIds* tokens,
         std::unique_ptr<cpu::KvCache> cache)
      : engine_(config, &weights, tokens, std::move(cache)) {}
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    engine_.step(launch, offset, values);
    if (after_step) after_step(launch);
  }
  void notify(const Command& command) override { engine_.notify(command); }
  std::vector<Sample> samples() const override {
    std::vector<Sample> out;
    for (const auto& one : engine_.samples()) out.push_back({one.request, one.position, one.token});
    return out;
  }
  std::vector<float> logits() const override { return {engine_.logits().begin(), engine_.logits().end()}; }
  uint64_t samples_digest() const override { return engine_.samples_digest(); }
  Duration copy_time(TransferId) override {
    check_failed("the CPU engine copies at once", __FILE__, __LINE__);
  }

  std::function<void(const LaunchStep&)> after_step;

 private:
  cpu::CpuEngine engine_;
};

class Model final : public TestedModel {
 public:
  explicit Model(const ModelWeights& weights) : weights_(weights) {}
  std::unique_ptr<TestedEngine> engine(const EngineSetup& setup, const cpu::TokenIds* tokens) const override {
    return std::make_unique<Engine>(
        cpu::CpuEngineConfig{setup.engine, setup.decoding, setup.end_tokens}, weights_, tokens,
        paged({setup.page_tokens, setup.pages_gpu, setup.pages_host, true, setup.pages_disk},
              weights_.llm()));
  }
  std::unique_ptr<TestedEngine> compressed(const CompressedSetup& setup,
                                           const cpu::TokenIds* tokens) const override {
    const CoreConfig& core = setup.core;
    auto made =
        cpu::CompressedCache::make({.core = core, .score = setup.score, .seed = kScorerSeed},
                                   {core.page_tokens, core.pages_gpu, core.pages_host, true}, &weights_);
    if (!made) check_failed(made.error().text().c_str(), __FILE__, __LINE__);
    const cpu::CompressedCache* const cache = made->get();
    auto out = std::make_unique<Engine>(cpu::CpuEngineConfig{}, weights_, tokens, std::move(*made));
    out->after_step = [cache, retained = setup.retained](const LaunchStep& launch) {
      for (const Compression& compression : launch.compressions) {
        const RequestId request = launch.entries[compression.entry].request;
        for (uint32_t head = 0; head < cache->shape().groups.heads(); ++head)
          retained(request, head, cache->positions(request, head));
      }
    };
    return out;
  }
  std::unique_ptr<TestedEngine> mixed_precision(const CoreConfig& core, bool,
                                                const cpu::TokenIds* tokens) const override {
    auto made = cpu::MixedPrecisionCache::make(
        {core.page_tokens, core.pages_gpu, core.pages_host, true}, weights_.llm(),
        {core.pages_int2, core.policies.precision_spec.group, core.step_tokens_max});
    if (!made) check_failed(made.error().text().c_str(), __FILE__, __LINE__);
    return std::make_unique<Engine>(cpu::CpuEngineConfig{}, weights_, tokens, std::move(*made));
  }

 private:
  const ModelWeights& weights_;
};

}  // namespace

TestedKind tested_kind() {
  return {.models = tiny_models(), .compressed_models = gqa_and_mha(), .disk_tier = true, .exact = true};
}
CoreConfig compressed_config(const Method& method, const LlmSpec& llm) { return config_of(method, llm); }
std::unique_ptr<TestedModel> tested_model(const ModelWeights& weights) {
  return std::make_unique<Model>(weights);
}
double tolerance(const LlmSpec&, std::string_view) { return 0; }

}  // namespace kvtwin::testing
