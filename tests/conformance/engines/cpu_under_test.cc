#include <utility>

#include "engine/base/check.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/paged_cache.h"
#include "tests/conformance/engines/tested_engine.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"

namespace kvtwin::testing {
namespace {

class Engine final : public TestedEngine {
 public:
  Engine(const EngineSetup& setup, const ModelWeights& weights, const cpu::TokenIds* tokens)
      : engine_({setup.engine, setup.decoding, setup.end_tokens}, &weights, tokens,
                paged({setup.page_tokens, setup.pages_gpu, setup.pages_host, true, setup.pages_disk},
                      weights.llm())) {}
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    engine_.step(launch, offset, values);
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

 private:
  cpu::CpuEngine engine_;
};

class Model final : public TestedModel {
 public:
  explicit Model(const ModelWeights& weights) : weights_(weights) {}
  std::unique_ptr<TestedEngine> engine(const EngineSetup& setup, const cpu::TokenIds* tokens) const override {
    return std::make_unique<Engine>(setup, weights_, tokens);
  }

 private:
  const ModelWeights& weights_;
};

}  // namespace

TestedKind tested_kind() { return {.models = tiny_models(), .disk_tier = true, .exact = true}; }
std::unique_ptr<TestedModel> tested_model(const ModelWeights& weights) {
  return std::make_unique<Model>(weights);
}
double tolerance(const LlmSpec&) { return 0; }

}  // namespace kvtwin::testing
