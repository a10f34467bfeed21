// Without a GPU the program is skipped (exit status 77).

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/packed/packed.h"
#include "engine/methods/probe_passes.h"
#include "tests/conformance/engines/tested_engine.h"
#include "tests/unit/cuda_engine/compress_both.h"

namespace kvtwin::testing {
namespace {

class Engine final : public TestedEngine {
 public:
  explicit Engine(std::unique_ptr<cuda::CudaEngine> engine) : engine_(std::move(engine)) {}
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    engine_->step(launch, offset, values);
  }
  void notify(const Command& command) override { engine_->notify(command); }
  std::vector<Sample> samples() const override {
    std::vector<Sample> out;
    for (const auto& one : engine_->samples()) out.push_back({one.request, one.position, one.token});
    return out;
  }
  std::vector<float> logits() const override { return engine_->logits(); }
  uint64_t samples_digest() const override { return engine_->samples_digest(); }
  Duration copy_time(TransferId transfer) override { return engine_->copy_time(transfer); }

 private:
  const std::unique_ptr<cuda::CudaEngine> engine_;
};

class Model final : public TestedModel {
 public:
  explicit Model(const ModelWeights& weights) : weights_(weights), device_(on_device(weights)) {}
  std::unique_ptr<TestedEngine> engine(const EngineSetup& setup, const cpu::TokenIds* tokens) const override {
    cuda::CudaEngineConfig config;
    config.engine = setup.engine, config.page_tokens = setup.page_tokens;
    config.pages_gpu = setup.pages_gpu, config.pages_host = setup.pages_host;
    config.rows_max = setup.rows_max, config.samples_max = setup.samples_max;
    config.row_sizes = setup.capture_sizes;
    config.decoding = setup.decoding, config.end_tokens = setup.end_tokens;
    config.concurrent_copies = setup.concurrent_copies, config.poison = true;
    Result<std::unique_ptr<cuda::CudaEngine>> made = cuda::CudaEngine::make(config, device_.get(), tokens);
    if (!made) check_failed(made.error().text().c_str(), __FILE__, __LINE__);
    return std::make_unique<Engine>(std::move(*made));
  }
  std::unique_ptr<TestedEngine> compressed(const CompressedSetup& setup,
                                           const cpu::TokenIds* tokens) const override {
    cuda::CudaEngineConfig config;
    config.page_tokens = setup.core.page_tokens;
    config.pages_gpu = setup.core.pages_gpu, config.pages_host = setup.core.pages_host;
    config.rows_max = std::max(setup.core.step_tokens_max, probe_passes(setup.core.policies).tokens_max());
    config.samples_max = setup.core.requests_max;
    config.concurrent_copies = setup.concurrent_copies, config.poison = true;
    cuda::CompressedOptions options;
    options.config = {.core = setup.core, .score = setup.score, .seed = kScorerSeed};
    options.retained = setup.retained;
    Result<cuda::OwnedCache> cache = cuda::make_compressed(options, memory_of(config), &weights_);
    if (!cache) check_failed(cache.error().text().c_str(), __FILE__, __LINE__);
    Result<std::unique_ptr<cuda::CudaEngine>> made =
        cuda::CudaEngine::make(config, device_.get(), tokens, std::move(*cache));
    if (!made) check_failed(made.error().text().c_str(), __FILE__, __LINE__);
    return std::make_unique<Engine>(std::move(*made));
  }
  std::unique_ptr<TestedEngine> mixed_precision(const CoreConfig& core, bool concurrent_copies,
                                                const cpu::TokenIds* tokens) const override {
    cuda::CudaEngineConfig config;
    config.page_tokens = core.page_tokens;
    config.pages_gpu = core.pages_gpu, config.pages_host = core.pages_host;
    config.rows_max = core.step_tokens_max, config.samples_max = core.requests_max;
    config.concurrent_copies = concurrent_copies, config.poison = true;
    Result<cuda::OwnedCache> cache = cuda::make_mixed_precision(
        {core.pages_int2, core.policies.precision_spec.group}, memory_of(config), &weights_.llm());
    if (!cache) check_failed(cache.error().text().c_str(), __FILE__, __LINE__);
    Result<std::unique_ptr<cuda::CudaEngine>> made =
        cuda::CudaEngine::make(config, device_.get(), tokens, std::move(*cache));
    if (!made) check_failed(made.error().text().c_str(), __FILE__, __LINE__);
    return std::make_unique<Engine>(std::move(*made));
  }

 private:
  const ModelWeights& weights_;
  const std::unique_ptr<cuda::DeviceModel> device_;
};

}  // namespace

TestedKind tested_kind() {
  return {.computes = Computes::kCuda,
          .models = cuda_models(),
          .compressed_models = models(),
          .concurrent_copies = true};
}
CoreConfig compressed_config(const Method& method, const LlmSpec& llm) { return cuda_config(method, llm); }
std::unique_ptr<TestedModel> tested_model(const ModelWeights& weights) {
  return std::make_unique<Model>(weights);
}
double tolerance(const LlmSpec& llm, std::string_view precision) { return method_tolerance(precision, llm); }

}  // namespace kvtwin::testing

int main(int argc, char** argv) {
  if (const kvtwin::Result<void> ok = kvtwin::cuda::check_gpu(); !ok) {
    std::printf("skipped: %s\n", ok.error().text().c_str());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
