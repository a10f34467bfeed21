#include "tests/unit/cpu_retrieval/retrieval_run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/base/prng.h"
#include "engine/common/cpu_backend.h"
#include "engine/cpu/packed/packed_cache.h"
#include "engine/cpu/paged_cache.h"
#include "engine/cpu/retrieval/recalled_entries.h"
#include "engine/cpu/retrieval/retrieved_cache.h"
#include "engine/methods/registry.h"
#include "engine/recorder/recorder.h"
#include "engine/runtime/driver.h"
#include "tests/support/retrieval_names.h"
#include "tests/unit/cpu_engine/backend_checks.h"

namespace kvtwin::testing {
namespace {

class Listener final : public OutcomeSource {
 public:
  Listener(cpu::CpuEngine* engine, uint32_t vocab, RetrievalOutcome* out)
      : engine_(engine), vocab_(vocab), out_(out) {}
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    engine_->step(launch, offset, values);
    if (offset == 0) out_->compressions += launch.compressions.size();
    for (const PlanEntry& entry : launch.entries)
      out_->tokens_reused += offset == 0 && entry.first ? entry.context : 0;
    out_->steps.emplace_back().recalls = values->recalls;
    const auto samples = engine_->samples();
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto logits = engine_->logits().subspan(i * vocab_, vocab_);
      // A page that was not recalled holds NaN.
      CHECK(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
      std::vector<float>& all = out_->logits[samples[i].request];
      all.insert(all.end(), logits.begin(), logits.end());
    }
  }
  void notify(const Command& command) override {
    const auto* drop = std::get_if<DropRequestState>(&command);
    const bool swapped_out = drop != nullptr && drop->reason == DropRequestState::Reason::kPreempted;
    out_->preemptions += swapped_out;
    if (swapped_out) out_->preempted.insert(drop->request);
    engine_->notify(command);
  }

 private:
  cpu::CpuEngine* const engine_;
  const uint32_t vocab_;
  RetrievalOutcome* const out_;
};

RetrievalKind method_of(const std::string& name) { return retrieval_traits(name).kind; }

// The cache that drops KV entries: alone, with Quest over the retained ones, or with their recall.
std::unique_ptr<cpu::KvCache> make_cutting(const RetrievalSetting& setting, const CoreConfig& core,
                                           const cpu::KvMemory& memory, const cpu::RetrievedOptions& options,
                                           const ModelWeights& weights) {
  cpu::CompressedConfig config{.core = core, .score = kernels::score_spec(setting.scorer), .seed = 1};
  config.score.window.window = std::min(config.score.window.window, 8u);
  config.score.seed = 11;
  if (core.policies.placement == "resident") {
    auto made = cpu::RecalledEntries::make(config, memory, &weights, options);
    REQUIRE(made.has_value());
    return std::move(*made);
  }
  auto made = cpu::CompressedCache::make(config, memory, &weights);
  REQUIRE(made.has_value());
  return std::move(*made);
}

std::unique_ptr<cpu::KvCache> make_cache(const RetrievalSetting& setting, const CoreConfig& core,
                                         const ModelWeights& weights) {
  const cpu::KvMemory memory{core.page_tokens, core.pages_gpu, core.pages_host, true};
  const cpu::RetrievedOptions options{.kind = method_of(setting.retrieval),
                                      .spec = setting.spec,
                                      .copies = setting.copies,
                                      .delays = setting.delays,
                                      .witness = setting.witness,
                                      .prefix_cache = setting.prefix_cache,
                                      .format = precision_traits(setting.precision).prompt_format};
  if (setting.scorer != "none") return make_cutting(setting, core, memory, options, weights);
  Result<std::unique_ptr<cpu::KvCache>> made =
      setting.retrieval != "all" ? cpu::RetrievedCache::make(memory, &weights, options)
      : options.format != Format::kBf16
          ? cpu::PackedCache::make(memory, weights.llm(), {.format = options.format})
          : cpu::PagedCache::make(memory, weights.llm());
  REQUIRE(made.has_value());
  return std::move(*made);
}

}  // namespace

RetrievalSpec small_spec(RetrievalName method) {
  RetrievalSpec spec = retrieval_defaults(method);
  spec.sink_tokens = 8;
  spec.window_tokens = 16;
  spec.budget_tokens = 56;
  spec.extra_tokens = method == kShadowkv ? 16 : 0;
  spec.layers_dense = method == kInfinigen ? 1 : 0;
  spec.rank = 12;
  return spec;
}

CoreConfig core_of(const RetrievalSetting& setting, const LlmSpec* llm) {
  CoreConfig core;
  core.page_tokens = core.unit_tokens = setting.page_tokens;
  core.pages_gpu = setting.pages_gpu;
  core.step_tokens_max = setting.step_tokens_max;
  core.requests_max = setting.requests_max;
  core.steps_in_flight_max = setting.in_flight;
  core.capture_sizes = setting.capture_sizes;
  core.prefix_cache = setting.prefix_cache;
  core.policies.identity = setting.identity;
  core.policies.retrieval = setting.retrieval;
  core.policies.precision = setting.precision;
  core.policies.retrieval_spec = setting.spec;
  if (setting.retrieval != "all" && setting.retrieval != "quest") {
    core.policies.placement = "resident";
    core.pages_host = setting.pages_host;
  }
  if (setting.scorer != "none") {
    PolicySet& set = core.policies;
    set.scorer = setting.scorer, set.budget = setting.budget, set.layout = "compact";
    set.scorer_spec.compression_trigger = CompressionTrigger::kPromptEnd;
    set.budget_spec = setting.budget_spec;
    set.identity = "none";
    REQUIRE(llm != nullptr);
    set.layout_spec.layers = llm->layers, set.layout_spec.kv_heads = llm->kv_heads;
  }
  const auto problem = validate_core_config(core);
  REQUIRE_MESSAGE(!problem, problem.value_or(""));
  return core;
}

RetrievalOutcome run_retrieval(const RetrievalSetting& setting, const ModelWeights& weights,
                               const std::vector<RetrievalRequest>& requests) {
  RetrievalOutcome out;
  RunOptions options;
  options.check_invariants = true;
  options.engines = {core_of(setting, &weights.llm())};
  ArrivingRequests client(requests);
  cpu::IdentityTokens tokens(
      {.seed = setting.seed, .unit_tokens = setting.page_tokens, .vocab = weights.llm().vocab});
  cpu::CpuEngine engine({}, &weights, &tokens, make_cache(setting, options.engines[0], weights));
  Listener listener(&engine, weights.llm().vocab, &out);
  cpu::CpuBackend backend({{setting.in_flight}}, &listener, drawn_times(setting.seed));
  Recorder recorder(options, {"retrieval", setting.seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &backend, {&recorder});
  CHECK(end.idle);
  CHECK(client.finished == requests.size());
  check_replays(recorder.finish(end), end.digest);
  out.recalled = engine.recalled();
  out.digest = end.digest;
  return out;
}

std::vector<RetrievalRequest> turns_of_sessions(uint32_t page_tokens, uint32_t sessions, uint32_t turns_each,
                                                uint64_t seed) {
  Prng prng(draw({seed, 7}));
  std::vector<RetrievalRequest> out;
  for (uint32_t turn = 0; turn < turns_each; ++turn) {
    for (uint32_t s = 0; s < sessions; ++s) {
      const uint32_t before =
          turn == 0 ? 8 * page_tokens : out[out.size() - sessions].prompt + out[out.size() - sessions].output;
      RetrievalRequest request;
      request.at_ns = int64_t{turn} * 40'000 + int64_t{s} * 900;
      request.prompt = before + static_cast<uint32_t>(prng.range(1, 40));
      request.output = static_cast<uint32_t>(prng.range(1, 30));
      request.session = s;
      const uint32_t units = (request.prompt + request.output) / page_tokens;
      request.identity = {{1, 0, 4}, {2 + s, 4, units - 4}};
      out.push_back(request);
    }
  }
  return out;
}

}  // namespace kvtwin::testing
