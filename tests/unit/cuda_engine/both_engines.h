// Whole runs of retrieval that the CUDA engine and the CPU engine perform together, step by step.

#ifndef KVTWIN_TESTS_UNIT_CUDA_ENGINE_BOTH_ENGINES_H_
#define KVTWIN_TESTS_UNIT_CUDA_ENGINE_BOTH_ENGINES_H_

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/common/cpu_backend.h"
#include "engine/cpu/retrieval/recalled_entries.h"
#include "engine/cpu/retrieval/retrieved_cache.h"
#include "engine/cuda/retrieval/retrieved.h"
#include "engine/recorder/recorder.h"
#include "engine/runtime/driver.h"
#include "tests/support/retrieval_names.h"
#include "tests/unit/cpu_engine/backend_checks.h"
#include "tests/unit/cpu_retrieval/retrieval_run.h"
#include "tests/unit/cuda_engine/cuda_steps.h"

namespace kvtwin::testing {

// What a test watches on the GPU.
struct WatchOnGpu {
  cuda::OrderTests order{};
  decltype(cuda::CudaEngineConfig::issued) issued{};  // is given the operations of every step
};

// The comparison of one run.
struct Compared {
  std::vector<double> errors;  // of every sample
  uint64_t samples_that_chose = 0, blocking_cpu = 0, blocking_gpu = 0, chosen_cpu = 0, chosen_gpu = 0;
  uint64_t preemptions = 0, pages_reused = 0, compressions = 0;
  double tokens_agree = 1;  // InfiniGen: the fraction of selected tokens that both engines selected
  std::vector<std::vector<float>> logits;  // of the GPU
};

// Both engines perform every step; the CPU engine's outcomes are used.
class BothEngines final : public OutcomeSource {
 public:
  BothEngines(cuda::CudaEngine* gpu, cpu::CpuEngine* cpu, uint32_t vocab, Compared* out)
      : gpu_(*gpu), cpu_(*cpu), vocab_(vocab), out_(*out) {}
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    DataOutcomes same;
    if (offset == 0) out_.compressions += launch.compressions.size();
    for (const PrefixHit& prefix_hit : launch.prefix_hits)
      out_.pages_reused += offset == 0 ? prefix_hit.pages.size() / 2 : 0;
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
        if (!std::isfinite(x)) FAIL_CHECK("not a number: a KV entry was read that was never written");
      }
      out_.errors.push_back(relative_error(row(got), row(cpu_.logits())));
    }
  }
  void notify(const Command& command) override {
    const auto* drop = std::get_if<DropRequestState>(&command);
    out_.preemptions += drop != nullptr && drop->reason == DropRequestState::Reason::kPreempted;
    gpu_.notify(command), cpu_.notify(command);
  }

 private:
  cuda::CudaEngine& gpu_;
  cpu::CpuEngine& cpu_;
  const size_t vocab_;
  Compared& out_;
};

// The KV entries that the GPU retained. The CPU engine retains the same, because bf16 scores have other near
// ties.
using RetainedByGpu = std::shared_ptr<std::map<std::pair<RequestId, uint32_t>, std::vector<uint32_t>>>;

// The tokens that InfiniGen selected on the GPU in the step at hand, by request, layer, head and position.
// The CPU engine reads the same, so that logits are compared at equal choices; how often the choices agree is
// counted. Single tokens are nearly as good as others much more often than pages are.
class SelectedByGpu {
 public:
  void selected(const cpu::HeadAt& at, std::span<const uint32_t> tokens) {
    by_head_[key(at)].assign(tokens.begin(), tokens.end());
  }
  void replace(const cpu::HeadAt& at, std::vector<uint32_t>* tokens) {
    const auto found = by_head_.find(key(at));
    REQUIRE(found != by_head_.end());
    std::vector<uint32_t> both;
    std::set_intersection(tokens->begin(), tokens->end(), found->second.begin(), found->second.end(),
                          std::back_inserter(both));
    equal_ += both.size(), all_ += std::max(tokens->size(), found->second.size());
    *tokens = std::move(found->second);
    by_head_.erase(found);
  }
  double agreement() const { return all_ == 0 ? 1 : static_cast<double>(equal_) / static_cast<double>(all_); }

 private:
  using Key = std::tuple<RequestId, uint32_t, uint32_t, uint32_t>;
  static Key key(const cpu::HeadAt& at) { return {at.request, at.layer, at.head, at.position}; }
  std::map<Key, std::vector<uint32_t>> by_head_;
  uint64_t equal_ = 0, all_ = 0;
};
// What the CPU engine takes over from the GPU.
struct TakenFromGpu {
  RetainedByGpu retained = std::make_shared<RetainedByGpu::element_type>();
  std::shared_ptr<SelectedByGpu> selected = std::make_shared<SelectedByGpu>();
};

inline cpu::CompressedConfig cutting_config(const RetrievalSetting& setting, const CoreConfig& core) {
  cpu::CompressedConfig out{.core = core, .score = kernels::score_spec(setting.scorer), .seed = 1};
  out.score.window.window = std::min(out.score.window.window, 8u);
  out.score.seed = 11;
  return out;
}

inline cuda::OwnedCache cuda_cache(const RetrievalSetting& setting, RetrievalName method,
                                   const CoreConfig& core, const cuda::CudaEngineConfig& engine,
                                   const ModelWeights& weights, const TakenFromGpu& taken,
                                   const cuda::OrderTests& order) {
  const cuda::KvMemory memory{engine.page_tokens, engine.pages_gpu, engine.pages_host, engine.rows_max, true};
  const cuda::RetrievedOptions options{
      .kind = method,
      .spec = setting.spec,
      .copies = setting.copies,
      .tests = order,
      .selected_tokens = [selected = taken.selected](
                             const cpu::HeadAt& at,
                             std::span<const uint32_t> tokens) { selected->selected(at, tokens); },
      .prefix_cache = setting.prefix_cache};
  Result<cuda::OwnedCache> made;
  if (setting.scorer == "none") {
    REQUIRE(!cuda::check_retrieved(method, setting.spec, setting.copies, weights.llm(), core.page_tokens)
                 .has_value());
    made = cuda::make_retrieved(options, memory, weights.llm());
  } else {
    cuda::CompressedOptions cutting{.config = cutting_config(setting, core)};
    cutting.retained = [retained = taken.retained](RequestId request, uint32_t head,
                                                   std::span<const uint32_t> positions) {
      (*retained)[{request, head}].assign(positions.begin(), positions.end());
    };
    REQUIRE(
        !cuda::check_recalled(core, cutting.config.score, method, setting.copies, weights.llm()).has_value());
    made = cuda::make_recalled(cutting, options, memory, &weights);
  }
  REQUIRE(made.has_value());
  return std::move(*made);
}

inline std::unique_ptr<cpu::KvCache> cpu_cache(const RetrievalSetting& setting, RetrievalName method,
                                               const CoreConfig& core, const ModelWeights& weights,
                                               const TakenFromGpu& taken) {
  const cpu::KvMemory memory{core.page_tokens, core.pages_gpu, core.pages_host, true};
  const cpu::RetrievedOptions options{
      .kind = method,
      .spec = setting.spec,
      .copies = setting.copies,
      .replace_tokens = [selected = taken.selected](
                            const cpu::HeadAt& at,
                            std::vector<uint32_t>* tokens) { selected->replace(at, tokens); },
      .prefix_cache = setting.prefix_cache};
  Result<std::unique_ptr<cpu::KvCache>> made;
  if (setting.scorer == "none") {
    made = cpu::RetrievedCache::make(memory, &weights, options);
  } else {
    cpu::CompressedConfig cutting = cutting_config(setting, core);
    cutting.force_outcomes = [retained = taken.retained](RequestId request, uint32_t head) {
      return std::span<const uint32_t>(retained->at({request, head}));
    };
    made = cpu::RecalledEntries::make(cutting, memory, &weights, options);
  }
  REQUIRE(made.has_value());
  return std::move(*made);
}

inline Compared run_both(const RetrievalSetting& setting, RetrievalName method,
                         const std::vector<RetrievalRequest>& requests, const LlmSpec& llm,
                         const WatchOnGpu& watch = {}) {
  Compared out;
  const ModelWeights weights = ModelWeights::random(llm, 11);
  const std::unique_ptr<cuda::DeviceModel> model = on_device(weights);
  RunOptions options;
  options.check_invariants = true;
  options.engines = {core_of(setting, &llm)};
  const CoreConfig& core = options.engines[0];
  ArrivingRequests client(requests);
  cpu::IdentityTokens tokens({.seed = setting.seed, .unit_tokens = setting.page_tokens, .vocab = llm.vocab});
  cuda::CudaEngineConfig config;
  config.page_tokens = core.page_tokens, config.pages_gpu = core.pages_gpu,
  config.pages_host = core.pages_host;
  config.rows_max = core.step_tokens_max, config.samples_max = core.requests_max, config.poison = true;
  config.issued = watch.issued;
  const TakenFromGpu taken;
  auto gpu = cuda::CudaEngine::make(config, model.get(), &tokens,
                                    cuda_cache(setting, method, core, config, weights, taken, watch.order));
  REQUIRE(gpu.has_value());
  cpu::CpuEngine cpu({}, &weights, &tokens, cpu_cache(setting, method, core, weights, taken));
  BothEngines both(gpu->get(), &cpu, llm.vocab, &out);
  cpu::CpuBackend backend({{setting.in_flight}}, &both, drawn_times(setting.seed));
  Recorder recorder(options, {"chosen", setting.seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &backend, {&recorder});
  CHECK(end.idle);
  CHECK(client.finished == requests.size());
  check_replays(recorder.finish(end), end.digest);
  out.tokens_agree = taken.selected->agreement();
  std::sort(out.errors.begin(), out.errors.end());
  return out;
}

inline double quantile(const std::vector<double>& sorted, double at) {
  return sorted[static_cast<size_t>(at * static_cast<double>(sorted.size() - 1))];
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CUDA_ENGINE_BOTH_ENGINES_H_
