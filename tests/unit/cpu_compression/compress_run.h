// A whole run of one engine under a compressing policy: Core, ScriptClient, CPU engine and WitnessCache.

#ifndef KVTWIN_TESTS_UNIT_CPU_COMPRESSION_COMPRESS_RUN_H_
#define KVTWIN_TESTS_UNIT_CPU_COMPRESSION_COMPRESS_RUN_H_

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "engine/common/cpu_backend.h"
#include "engine/cpu/packed/packed_cache.h"
#include "engine/cpu/retrieval/retrieved_cache.h"
#include "engine/methods/registry.h"
#include "engine/recorder/recorder.h"
#include "engine/recorder/recorder_replay.h"
#include "engine/runtime/driver.h"
#include "kernels/scoring/score.h"
#include "tests/support/retrieval_names.h"
#include "tests/support/script_client.h"
#include "tests/unit/cpu_compression/witness_cache.h"
#include "tests/unit/cpu_engine/backend_checks.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"
#include "tests/unit/kernels/floats.h"

namespace kvtwin::testing {

// GQA 4:1, MHA.
inline std::vector<LlmSpec> gqa_and_mha() { return {tiny_models()[2], tiny_models()[1]}; }

struct Method {
  const char* scorer;
  const char* budget;
  const char* layout;
  uint32_t heads_per_group = 0;
  Clustering clustering = Clustering::kAdjacent;
  std::optional<CompressionTrigger> compression_trigger{};
  const char* precision = "bf16";
  const char* retrieval = "all";
};

// A configuration that drops many entries of prompts of about sixty tokens.
inline CoreConfig config_of(const Method& method, const LlmSpec& llm) {
  CoreConfig config;
  config.page_tokens = std::string(method.layout) == "slot_mask" ? 1 : 4;
  config.unit_tokens = config.page_tokens;
  config.pages_gpu = 4000;
  config.requests_max = 4;
  config.step_tokens_max = 64;
  PolicySet& set = config.policies;
  set.scorer = method.scorer, set.budget = method.budget, set.layout = method.layout;
  set.scorer_spec.compression_trigger = method.compression_trigger;
  set.precision = method.precision, set.retrieval = method.retrieval;
  if (set.retrieval != "all") {
    set.retrieval_spec = retrieval_defaults(kQuest);
    set.retrieval_spec.budget_tokens = 4 * config.page_tokens;
    set.retrieval_spec.sink_tokens = set.retrieval_spec.window_tokens = config.page_tokens;
    set.retrieval_spec.layers_dense = 1, set.retrieval_spec.scale = ScoreScale::kInverseSqrt;
    set.retrieval_spec.pooling = GroupPooling::kMeanS;  // the form that witnesses compute
  }
  const bool dropped_slots = config.page_tokens == 1 || set.layout == "page_mask";
  set.identity = dropped_slots ? "session_memory" : "none";
  config.prefix_cache = dropped_slots;
  set.layout_spec.layers = llm.layers, set.layout_spec.kv_heads = llm.kv_heads;
  set.layout_spec.heads_per_group = method.heads_per_group;
  set.layout_spec.clustering = method.clustering;
  if (set.scorer == "judge_q") set.scorer_spec.probe_tokens = 5;
  set.scorer_spec.repeat_tokens = 20, set.scorer_spec.repeat_tail = 3;
  set.scorer_spec.repeat_instruction = 4;
  BudgetSpec& budget = set.budget_spec;
  budget.sinks = 2, budget.window = 4, budget.chunk_tokens = 16, budget.kv_entries = 16, budget.interval = 3;
  budget.ratio = kWhole / 3;
  budget.retained_min = 8;
  for (uint32_t head = 0; head < set.layout_spec.heads(); ++head) {
    budget.mu.push_back(kWhole / 8 + draw({head, 5}) % (kWhole / 4));
    budget.sigma.push_back(kWhole / 16);
    budget.keeps_all.push_back(head % 2 == 0);
  }
  return config;
}

inline kernels::ScoreSpec score_of(const CoreConfig& config) {
  kernels::ScoreSpec spec = kernels::score_spec(config.policies.scorer);
  if (spec.window.window > 8) spec.window.window = 8;
  spec.expected.future = 16;
  spec.sink = 2;
  spec.page_tokens = config.page_tokens;
  spec.seed = 11;
  return spec;
}

// Hashes the logits of every request's tokens, and passes outcomes on.
class LogitHashes final : public OutcomeSource {
 public:
  explicit LogitHashes(cpu::CpuEngine* engine) : engine_(engine) {}
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    if (launched) launched(launch, offset);
    for (const PlanEntry& entry : launch.entries) {
      if (offset > 0 || !entry.first) continue;
      if (entry.swapped_in) swapped_in_.insert(entry.request);
      if (!entry.swapped_in && !launched_.insert(entry.request).second) recomputed_.insert(entry.request);
    }
    engine_->step(launch, offset, values);
    const size_t vocab =
        engine_->samples().empty() ? 0 : engine_->logits().size() / engine_->samples().size();
    for (size_t i = 0; i < engine_->samples().size(); ++i) {
      const auto& sample = engine_->samples()[i];
      const std::vector<float> row(engine_->logits().begin() + static_cast<ptrdiff_t>(i * vocab),
                                   engine_->logits().begin() + static_cast<ptrdiff_t>((i + 1) * vocab));
      for (const float x : row) finite_ = finite_ && std::isfinite(x);
      hashes_[sample.request][sample.position] = bits_of(row);
    }
  }
  void notify(const Command& command) override {
    const auto* drop = std::get_if<DropRequestState>(&command);
    if (drop != nullptr && dropped) dropped(drop->request);
    if (drop != nullptr && drop->reason == DropRequestState::Reason::kPreempted) {
      ++preemptions_;
      preempted_.insert(drop->request);
    }
    engine_->notify(command);
  }
  // By request, then position.
  std::map<RequestId, std::map<uint32_t, uint64_t>> hashes_;
  bool finite_ = true;
  uint32_t preemptions_ = 0;
  std::set<RequestId> preempted_, launched_, swapped_in_, recomputed_;
  std::function<void(const LaunchStep&, uint32_t offset)> launched;
  std::function<void(RequestId)> dropped;

 private:
  cpu::CpuEngine* const engine_;
};

struct RunResult {
  std::map<RequestId, std::map<uint32_t, uint64_t>> logits;
  std::set<RequestId> preempted{}, swapped_in{}, recomputed{};
  double worst = 0;
  uint64_t compressions = 0, dropped = 0, preemptions = 0, reused = 0, reused_dropped = 0, rows = 0,
           digest = 0, chose = 0;
};

struct RunOf {
  LlmSpec llm;
  CoreConfig config;
  uint64_t seed = 1;
  ScriptClientOptions client{};
  bool dense = false;  // no entry is dropped: PagedCache, PackedCache or RetrievedCache instead
  std::function<void(const WitnessCache::Retained&)> judge{};  // called after every compression
  std::function<void(kernels::ScoreSpec*)> scorer{};           // changes the scorer's settings
  std::function<void(WitnessCache*)> hook{};
  // Called with the commands of the backend before they are executed.
  std::function<void(const LaunchStep&, uint32_t offset)> launched{};
  std::function<void(RequestId)> request_dropped{};
  std::function<void(const ModelWeights&)> weigh{};
  bool ask_response = false;
  std::optional<cpu::ScorerWeights> weights{};
};

inline ScriptClientOptions client_of(const RunOf& what) {
  ScriptClientOptions out = what.client;
  out.seed = what.seed;
  out.unit_tokens = what.config.unit_tokens;
  return out;
}

// A cache that retains every KV entry, in the same format and with the same retrieval.
inline std::unique_ptr<cpu::KvCache> dense_cache(const RunOf& what, const cpu::KvMemory& memory,
                                                 const ModelWeights& weights) {
  const PolicySet& set = what.config.policies;
  if (set.retrieval != "all") {
    auto retrieved =
        cpu::RetrievedCache::make(memory, &weights, {.kind = kQuest, .spec = set.retrieval_spec});
    REQUIRE(retrieved);
    return std::move(*retrieved);
  }
  if (set.precision == "bf16") return paged(memory, what.llm);
  auto packed = cpu::PackedCache::make(memory, what.llm,
                                       {.format = precision_traits(set.precision).prompt_format,
                                        .group = set.precision_spec.group,
                                        .step_tokens_max = what.config.step_tokens_max});
  REQUIRE(packed);
  return std::move(*packed);
}

inline RunResult run_of(const RunOf& what) {
  const auto problem = validate_core_config(what.config);
  REQUIRE_MESSAGE(!problem.has_value(), problem.value_or(""));
  const ModelWeights weights = ModelWeights::random(what.llm, what.seed);
  if (what.weigh) what.weigh(weights);
  RunOptions options;
  options.check_invariants = true;
  options.engines = {what.config};
  ScriptClient client(client_of(what));
  cpu::IdentityTokens tokens(
      {.seed = what.seed, .unit_tokens = what.config.unit_tokens, .vocab = what.llm.vocab});
  const cpu::KvMemory memory{what.config.page_tokens, what.config.pages_gpu, what.config.pages_host, true};
  std::unique_ptr<cpu::KvCache> cache;
  WitnessCache* witness = nullptr;
  ChoiceWitness choices;
  const PolicySet& set = what.config.policies;
  if (what.dense) {
    cache = dense_cache(what, memory, weights);
  } else {
    kernels::ScoreSpec score = score_of(what.config);
    if (what.scorer) what.scorer(&score);
    auto made = cpu::CompressedCache::make({.core = what.config,
                                            .score = score,
                                            .seed = 9,
                                            .weights = what.weights,
                                            .ask_response = what.ask_response,
                                            .witness = &choices},
                                           memory, &weights);
    REQUIRE(made);
    auto watched = std::make_unique<WitnessCache>(std::move(*made), what.llm, what.config,
                                                  set.retrieval == "all" ? nullptr : &choices);
    witness = watched.get();
    witness->judge = what.judge;
    if (what.hook) what.hook(witness);
    cache = std::move(watched);
  }
  cpu::CpuEngine engine({}, &weights, &tokens, std::move(cache));
  LogitHashes hashes(&engine);
  hashes.launched = what.launched, hashes.dropped = what.request_dropped;
  cpu::CpuBackend backend({{what.config.steps_in_flight_max}}, &hashes, drawn_times(what.seed));
  Recorder recorder(options, {"compress", what.seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &backend, {&recorder});
  CHECK(end.idle);
  CHECK(client.content());
  CHECK(hashes.finite_);  // no unwritten slot was read
  check_replays(recorder.finish(end), end.digest);
  RunResult out{.logits = hashes.hashes_,
                .preempted = hashes.preempted_,
                .swapped_in = hashes.swapped_in_,
                .recomputed = hashes.recomputed_,
                .preemptions = hashes.preemptions_,
                .digest = end.digest};
  if (witness != nullptr) {
    out.worst = witness->worst(), out.compressions = witness->compressions();
    out.dropped = witness->dropped(), out.reused_dropped = witness->reused_dropped();
    out.reused = witness->reused();
    out.rows = witness->rows_checked(), out.chose = witness->chose();
    CHECK(witness->cache().nan_scores() == 0);
  }
  return out;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_COMPRESSION_COMPRESS_RUN_H_
