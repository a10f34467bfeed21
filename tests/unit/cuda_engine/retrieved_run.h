// Runs of retrieval on the CUDA engine: the real policy, and arriving requests.

#ifndef KVTWIN_TESTS_UNIT_CUDA_ENGINE_RETRIEVED_RUN_H_
#define KVTWIN_TESTS_UNIT_CUDA_ENGINE_RETRIEVED_RUN_H_

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/common/cpu_backend.h"
#include "engine/cuda/device/buffer.h"
#include "engine/cuda/device/happens_before.h"
#include "engine/cuda/retrieval/retrieved.h"
#include "engine/methods/registry.h"
#include "engine/recorder/recorder.h"
#include "engine/runtime/driver.h"
#include "engine/runtime/forced_outcomes.h"
#include "sim/behaviour/behaviour_retrieval.h"
#include "tests/support/retrieval_names.h"
#include "tests/unit/cpu_engine/backend_checks.h"
#include "tests/unit/cpu_retrieval/retrieval_run.h"
#include "tests/unit/cuda_engine/cuda_steps.h"

namespace kvtwin::testing {

inline const std::vector<RetrievalRequest> kRetrievalRequests = {
    {0, 400, 40}, {0, 90, 180}, {50, 333, 20}, {60, 30, 25}, {5'000, 257, 60}};

inline LlmSpec retrieval_model(uint32_t head_dim, uint32_t query_heads, uint32_t kv_heads) {
  LlmSpec m = tiny_model("llama", query_heads, kv_heads);
  m.head_dim = head_dim, m.layers = 3, m.hidden = 256, m.intermediate = 256, m.vocab = 256;
  return m;
}

// In pages of 16: 1 sink, a window of 2, 4 selected.
inline RetrievalSetting setting_of(const std::string& method, double tau, uint32_t layers_dense = 1) {
  RetrievalSetting setting;
  setting.retrieval = method;
  setting.page_tokens = 16, setting.pages_gpu = 120, setting.pages_host = 150, setting.step_tokens_max = 96;
  setting.copies.copy = HostCopy::kKernel;
  RetrievalSpec& spec = setting.spec;
  spec = retrieval_defaults(kFreekv);
  spec.sink_tokens = 16, spec.window_tokens = 32, spec.budget_tokens = 112, spec.layers_dense = layers_dense;
  spec.tau_q32 = static_cast<int64_t>(tau * static_cast<double>(kOneQ32));
  if (method != "freekv") spec.speculation = false;
  return setting;
}

inline RetrievalKind method_named(const std::string& name) { return retrieval_traits(name).kind; }

struct CudaOutcome {
  std::map<RequestId, std::vector<float>> logits;
  LayerRecall recalled;  // sums
  uint64_t preemptions = 0, digest = 0, replays = 0;
  ForcedOutcomes::Counts forced_outcome;  // steps
};

class CudaListener final : public ForcibleSource {
 public:
  CudaListener(cuda::CudaEngine* engine, uint32_t vocab, bool finite, CudaOutcome* out)
      : engine_(engine), vocab_(vocab), finite_(finite), out_(out) {}
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    engine_->step(launch, offset, values);
    for (const LayerRecall& one : values->recalls) {
      LayerRecall& sum = out_->recalled;
      sum.blocking += one.blocking, sum.background += one.background, sum.corrected += one.corrected;
      sum.heads += one.heads, sum.chosen += one.chosen;
    }
    const std::vector<float> logits = engine_->logits();
    const auto samples = engine_->samples();
    for (size_t i = 0; i < samples.size(); ++i) {
      std::vector<float>& all = out_->logits[samples[i].request];
      for (size_t k = i * vocab_; k < (i + 1) * vocab_; ++k) {
        if (finite_ && !std::isfinite(logits[k]))
          FAIL_CHECK("not a number: a KV entry was read that was never written");
        all.push_back(logits[k]);
      }
    }
  }
  void notify(const Command& command) override {
    const auto* drop = std::get_if<DropRequestState>(&command);
    out_->preemptions += drop != nullptr && drop->reason == DropRequestState::Reason::kPreempted;
    engine_->notify(command);
  }
  void force_outcomes(const DataOutcomes* given) override { engine_->force_outcomes(given); }

 private:
  cuda::CudaEngine* const engine_;
  const uint32_t vocab_;
  const bool finite_;
  CudaOutcome* const out_;
};

// `forced_outcome`: the outcomes of a behaviour model are forced, regardless of the data. `graphs`: the
// number of graph keys that are kept for replays. `issued`: is given the operations of every step.
inline CudaOutcome run_on_cuda(const RetrievalSetting& setting, const cuda::DeviceModel& model,
                               const LlmSpec& llm, const cuda::OrderTests& tests = {},
                               const std::optional<sim::RetrievalBehaviour>& forced_outcome = {},
                               uint32_t graphs = 64, decltype(cuda::CudaEngineConfig::issued) issued = {}) {
  CudaOutcome out;
  RunOptions options;
  options.check_invariants = true;
  options.engines = {core_of(setting)};
  const CoreConfig& core = options.engines[0];
  ArrivingRequests client(kRetrievalRequests);
  cpu::IdentityTokens tokens({.seed = setting.seed, .unit_tokens = setting.page_tokens, .vocab = llm.vocab});
  cuda::CudaEngineConfig config;
  config.page_tokens = core.page_tokens, config.pages_gpu = core.pages_gpu,
  config.pages_host = core.pages_host;
  config.rows_max = core.step_tokens_max, config.samples_max = core.requests_max, config.poison = true;
  config.graphs_max = graphs, config.issued = std::move(issued), config.row_sizes = core.capture_sizes;
  cuda::OwnedCache cache;
  if (setting.retrieval != "all") {
    const RetrievalKind method = method_named(setting.retrieval);
    REQUIRE(!cuda::check_retrieved(method, setting.spec, setting.copies, llm, core.page_tokens).has_value());
    Result<cuda::OwnedCache> made = cuda::make_retrieved(
        {method, setting.spec, setting.copies, tests},
        {config.page_tokens, config.pages_gpu, config.pages_host, config.rows_max, true, core.requests_max},
        llm);
    REQUIRE(made.has_value());
    cache = std::move(*made);
  }
  Result<std::unique_ptr<cuda::CudaEngine>> engine =
      cuda::CudaEngine::make(config, &model, &tokens, std::move(cache));
  REQUIRE(engine.has_value());
  const uint64_t taken = cuda::Buffer::live_bytes(cuda::Buffer::Kind::kDevice);
  CudaListener listener(engine->get(), llm.vocab, tests.left_out == Edge::kNone, &out);
  std::optional<sim::RetrievalSource> model_source;
  std::optional<ForcedOutcomes> forcing;
  if (forced_outcome) {
    model_source.emplace(*forced_outcome, method_named(setting.retrieval), setting.spec, setting.page_tokens,
                         llm.layers, llm.kv_heads);
    forcing.emplace(&*model_source, &listener);
  }
  OutcomeSource* const source = forcing ? static_cast<OutcomeSource*>(&*forcing) : &listener;
  cpu::CpuBackend backend({{setting.in_flight}}, source, drawn_times(setting.seed));
  Recorder recorder(options, {"retrieval", setting.seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &backend, {&recorder});
  CHECK(end.idle);
  // All memory was taken before the first step.
  CHECK(cuda::Buffer::live_bytes(cuda::Buffer::Kind::kDevice) == taken);
  CHECK(client.finished == kRetrievalRequests.size());
  check_replays(recorder.finish(end), end.digest);
  out.digest = end.digest;
  out.replays = (*engine)->graph_replays();
  if (forcing) out.forced_outcome = forcing->recalls();
  return out;
}

// A model of random weights on the GPU.
struct OnDevice {
  explicit OnDevice(const LlmSpec& spec)
      : llm(spec), weights(ModelWeights::random(spec, 11)), model(on_device(weights)) {}
  LlmSpec llm;
  ModelWeights weights;
  std::unique_ptr<cuda::DeviceModel> model;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CUDA_ENGINE_RETRIEVED_RUN_H_
