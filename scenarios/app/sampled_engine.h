// SampledEngine wraps a value-computing engine and reports its samples to a SampleWatcher.

#ifndef KVTWIN_SCENARIOS_APP_SAMPLED_ENGINE_H_
#define KVTWIN_SCENARIOS_APP_SAMPLED_ENGINE_H_

#include <span>

#include "engine/runtime/forced_outcomes.h"
#include "scenarios/app/compose.h"

namespace kvtwin {

// `Engine` is cpu::CpuEngine or cuda::CudaEngine. Engine and watcher must outlive this object.
template <typename Engine>
class SampledEngine final : public ForcibleSource {
 public:
  SampledEngine(Engine* engine, SampleWatcher* watcher) : engine_(*engine), watcher_(*watcher) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    engine_.step(launch, offset, values);
    const size_t count = engine_.samples().size();
    if (count == 0) return;
    const auto& logits = engine_.logits();  // a copy, for the CUDA engine
    const size_t vocab = logits.size() / count;
    for (size_t i = 0; i < count; ++i) {
      const auto& sample = engine_.samples()[i];
      watcher_.sampled(sample.request, sample.position, sample.token,
                       std::span<const float>(logits).subspan(i * vocab, vocab));
    }
  }
  void notify(const Command& command) override { engine_.notify(command); }
  void force_outcomes(const DataOutcomes* given) override { engine_.force_outcomes(given); }

 private:
  Engine& engine_;
  SampleWatcher& watcher_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_SAMPLED_ENGINE_H_
