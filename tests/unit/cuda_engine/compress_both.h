// Whole runs of methods that drop KV entries, on the GPU and on a reference, step by step.

#ifndef KVTWIN_TESTS_UNIT_CUDA_ENGINE_COMPRESS_BOTH_H_
#define KVTWIN_TESTS_UNIT_CUDA_ENGINE_COMPRESS_BOTH_H_

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>

#include "engine/common/cpu_backend.h"
#include "engine/cuda/caches.h"
#include "engine/cuda/packed/packed.h"
#include "engine/runtime/driver.h"
#include "tests/unit/cpu_compression/compress_run.h"
#include "tests/unit/cuda_engine/cuda_steps.h"

namespace kvtwin::testing {

// The same steps with dense policies: entries unchanged, pages by position.
class DenseTwin {
 public:
  // `by_position`: the layout's own pages are by position.
  DenseTwin(std::unique_ptr<cuda::CudaEngine> engine, uint32_t page_tokens, bool by_position)
      : engine_(std::move(engine)), page_tokens_(page_tokens), by_position_(by_position) {}

  // Passes of probe tokens belong to the method: the dense engine does without them.
  std::vector<float> step(LaunchStep launch, uint32_t offset) {
    std::vector<PlanEntry> entries;
    std::vector<PageAllocation> allocations;
    for (uint32_t i = 0; i < launch.entries.size(); ++i) {
      if (launch.entries[i].kind == EntryKind::kProbe) continue;
      const auto index = static_cast<uint32_t>(entries.size());
      entries.push_back(launch.entries[i]);
      for (const PageAllocation& one : launch.allocations) {
        if (by_position_ && one.entry == i) allocations.push_back({one.offset, index, one.page, one.group});
      }
      if (!by_position_) allocate(entries.back(), offset, index, &allocations);
    }
    if (entries.empty()) return {};
    launch.entries = entries, launch.allocations = allocations;
    launch.passes = {}, launch.compressions = {};
    DataOutcomes values;
    engine_->step(launch, offset, &values);
    return engine_->logits();
  }
  void notify(const Command& command) { engine_->notify(command); }

 private:
  void allocate(const PlanEntry& entry, uint32_t offset, uint32_t index,
                std::vector<PageAllocation>* allocations) {
    uint32_t& pages = pages_[entry.request];
    if (entry.first && offset == 0) pages = 0;
    for (; pages * page_tokens_ < entry.context + offset + entry.tokens; ++pages)
      allocations->push_back({offset, index, PageId{next_++}});
  }

  const std::unique_ptr<cuda::CudaEngine> engine_;
  const uint32_t page_tokens_;
  const bool by_position_;
  std::map<RequestId, uint32_t> pages_;
  uint32_t next_ = 0;  // pages are used once
};

// Performs every step on the GPU and on its references.
class PairedEngines final : public OutcomeSource {
 public:
  struct Parts {
    cuda::CudaEngine* gpu = nullptr;
    cpu::CpuEngine* cpu = nullptr;                 // may be null
    DenseTwin* dense = nullptr;                    // may be null
    cpu::CpuEngine* judge = nullptr;               // may be null: retains by its own scores
    const cpu::CompressedCache* judged = nullptr;  // its KV entries
    cuda::CudaEngine* twin = nullptr;              // may be null: computes the same by other means
  };
  explicit PairedEngines(const Parts& parts) : parts_(parts) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    parts_.gpu->step(launch, offset, values);
    compressions += launch.compressions.size();
    if (offset == 0) count_continued(launch);
    if (parts_.judge != nullptr) judge(launch, offset);
    const std::vector<float> logits = parts_.gpu->logits();
    if (parts_.dense != nullptr) {
      ++steps;
      unequal += parts_.dense->step(launch, offset) != logits;
    }
    if (parts_.twin != nullptr) {
      DataOutcomes same;
      parts_.twin->step(launch, offset, &same);
      ++steps;
      unequal += parts_.twin->logits() != logits || same.retained_live != values->retained_live;
    }
    if (parts_.cpu == nullptr) return;
    DataOutcomes same;
    parts_.cpu->step(launch, offset, &same);
    CHECK(same.retained_counts == values->retained_counts);
    CHECK(same.retained_live == values->retained_live);
    const std::vector<float> expected(parts_.cpu->logits().begin(), parts_.cpu->logits().end());
    for (size_t layer = 0; layer < values->recalls.size(); ++layer) {
      CHECK(same.recalls[layer].heads == values->recalls[layer].heads);
      CHECK(same.recalls[layer].chosen == values->recalls[layer].chosen);
      heads_that_chose += values->recalls[layer].heads;
    }
    if (logits.empty()) return;
    errors.push_back(relative_error(logits, expected));
    worst = std::max(worst, errors.back());
  }
  void notify(const Command& command) override {
    const auto* drop = std::get_if<DropRequestState>(&command);
    preemptions += drop != nullptr && drop->reason == DropRequestState::Reason::kPreempted;
    const auto* transfer = std::get_if<StartTransfer>(&command);
    swap_ins += transfer != nullptr && transfer->kind == TransferKind::kSwapIn;
    parts_.gpu->notify(command);
    if (parts_.cpu != nullptr) parts_.cpu->notify(command);
    if (parts_.judge != nullptr) parts_.judge->notify(command);
    if (parts_.dense != nullptr) parts_.dense->notify(command);
    if (parts_.twin != nullptr) parts_.twin->notify(command);
  }

  double worst = 0;
  std::vector<double> errors;  // of steps with samples
  uint64_t preemptions = 0, swap_ins = 0, steps = 0, unequal = 0, compressions = 0, heads_that_chose = 0,
           replays = 0;
  // Requests that began with a prefix checkpoint, and those that continued from their own.
  uint64_t begun = 0, continued = 0;

  // The entries that both engines retained by their own scores, and all retained entries.
  uint64_t agreed = 0, retained = 0;
  std::map<std::pair<RequestId, uint32_t>, std::vector<uint32_t>> by_gpu;

 private:
  void count_continued(const LaunchStep& launch) {
    for (const PrefixHit& prefix_hit : launch.prefix_hits) {
      if (prefix_hit.kv_entries.empty()) continue;
      const auto entry =
          std::find_if(launch.entries.begin(), launch.entries.end(),
                       [&](const PlanEntry& one) { return one.request == prefix_hit.request; });
      REQUIRE(entry != launch.entries.end());
      ++(entry->first ? begun : continued);
    }
  }
  void judge(const LaunchStep& launch, uint32_t offset) {
    DataOutcomes own;
    parts_.judge->step(launch, offset, &own);
    for (const Compression& c : launch.compressions) {
      const RequestId request = launch.entries[c.entry].request;
      for (const auto& [key, positions] : by_gpu) {
        if (key.first != request) continue;
        const std::span<const uint32_t> mine = parts_.judged->positions(request, key.second);
        std::vector<uint32_t> both;
        std::set_intersection(mine.begin(), mine.end(), positions.begin(), positions.end(),
                              std::back_inserter(both));
        agreed += both.size(), retained += positions.size();
      }
    }
  }

  const Parts parts_;
};

// Heads of 64 and 128, GQA, two KV heads and one.
inline std::vector<LlmSpec> models() { return {cuda_models()[4], cuda_models()[6]}; }

inline CoreConfig cuda_config(const Method& method, const LlmSpec& llm) {
  CoreConfig config = config_of(method, llm);
  if (config.page_tokens != 1) config.page_tokens = config.unit_tokens = 16;
  BudgetSpec& budget = config.policies.budget_spec;
  budget.sinks = 4, budget.window = 8, budget.kv_entries = 40, budget.interval = 3, budget.chunk_tokens = 32;
  config.step_tokens_max = 96;
  RetrievalSpec& quest = config.policies.retrieval_spec;
  if (config.policies.retrieval == "all") return config;
  quest.budget_tokens = 64, quest.sink_tokens = quest.window_tokens = 16;
  budget.ratio = kWhole / 3 * 2;
  for (auto& mean : budget.mu) mean = kWhole / 2 + mean;
  return config;
}

struct ExpectedOutcome {
  LlmSpec llm;
  CoreConfig config;
  uint64_t seed = 1;
  bool dense = false;     // compare with the dense engine
  bool compare = false;   // compare with the CPU engine that retains the GPU's entries
  bool judge = false;     // compare with the CPU engine that retains by its own scores
  bool launched = false;  // compare with an engine without graphs
  bool on_host = false;   // compare with an engine that scores on the host
  bool spans = false;     // prompts say what they ask
  uint32_t cancels = 0, sessions = 3;
  std::optional<cpu::ScorerWeights> weights{};  // absent: drawn
  PartitionSpec partition{};
  std::function<void(kernels::ScoreSpec*)> adjust{};
  decltype(cuda::CudaEngineConfig::issued) issued{};  // of the GPU
};

// Poisoned pages of the engine.
inline cuda::KvMemory memory_of(const cuda::CudaEngineConfig& own) {
  return {own.page_tokens, own.pages_gpu, own.pages_host, own.rows_max, true};
}
inline cpu::KvMemory memory_on_cpu(const cuda::CudaEngineConfig& own) {
  return {own.page_tokens, own.pages_gpu, own.pages_host, true};
}

// Pages by position, in the method's format.
inline std::unique_ptr<DenseTwin> dense_twin(const ExpectedOutcome& what, const cuda::CudaEngineConfig& own,
                                             const cuda::DeviceModel& device, cpu::IdentityTokens* tokens) {
  cuda::OwnedCache cache;
  if (what.config.policies.precision != "bf16") {
    const Format format = precision_traits(what.config.policies.precision).prompt_format;
    auto packed =
        cuda::make_packed({format, what.config.policies.precision_spec.group}, memory_of(own), &what.llm);
    REQUIRE(packed);
    cache = std::move(*packed);
  }
  auto twin = cuda::CudaEngine::make(own, &device, tokens, std::move(cache));
  REQUIRE(twin);
  return std::make_unique<DenseTwin>(std::move(*twin), own.page_tokens, what.config.prefix_cache);
}

// An engine that differs in its graphs only, or in where it scores only.
inline std::unique_ptr<cuda::CudaEngine> other_twin(const ExpectedOutcome& what,
                                                    cuda::CompressedOptions options,
                                                    cuda::CudaEngineConfig own, const ModelWeights& weights,
                                                    const cuda::DeviceModel& device,
                                                    cpu::IdentityTokens* tokens) {
  options.retained = nullptr;
  if (what.launched) own.graphs_max = 0;
  static kernels::ScorerDefinition host_scorer;  // outlives the twin
  host_scorer = *options.config.score.scorer, host_scorer.device = kernels::DeviceScores::kHost;
  if (what.on_host) options.config.score.scorer = &host_scorer;
  auto cache = cuda::make_compressed(options, memory_of(own), &weights);
  REQUIRE(cache);
  auto twin = cuda::CudaEngine::make(own, &device, tokens, std::move(*cache));
  REQUIRE(twin);
  return std::move(*twin);
}

inline cuda::CudaEngineConfig noting(cuda::CudaEngineConfig config, const ExpectedOutcome& what) {
  config.issued = what.issued;
  return config;
}

inline cuda::CudaEngineConfig engine_config(const CoreConfig& config) {
  cuda::CudaEngineConfig own;
  own.page_tokens = config.page_tokens, own.pages_gpu = config.pages_gpu;
  own.pages_host = config.pages_host, own.row_sizes = config.capture_sizes;
  own.rows_max = config.step_tokens_max, own.samples_max = config.requests_max;
  own.poison = true;
  return own;
}

inline PairedEngines run_both(const ExpectedOutcome& what) {
  const auto problem = validate_core_config(what.config);
  REQUIRE_MESSAGE(!problem.has_value(), problem.value_or(""));
  const ModelWeights weights = ModelWeights::random(what.llm, what.seed);
  const std::unique_ptr<cuda::DeviceModel> device = on_device(weights);
  cpu::IdentityTokens tokens(
      {.seed = what.seed, .unit_tokens = what.config.unit_tokens, .vocab = what.llm.vocab});
  const cuda::CudaEngineConfig own = engine_config(what.config);
  PairedEngines* record = nullptr;
  kernels::ScoreSpec score = score_of(what.config);
  if (what.adjust) what.adjust(&score);
  cuda::CompressedOptions gpu_options;
  gpu_options.config = {.core = what.config, .score = score, .seed = 9, .weights = what.weights};
  gpu_options.partition = what.partition;
  gpu_options.retained = [&](RequestId request, uint32_t head, std::span<const uint32_t> positions) {
    record->by_gpu[{request, head}].assign(positions.begin(), positions.end());
  };
  const auto refused = cuda::check_compressed(what.config, score, what.llm);
  REQUIRE_MESSAGE(!refused.has_value(), refused.value_or(""));
  auto cache = cuda::make_compressed(gpu_options, memory_of(own), &weights);
  REQUIRE(cache);
  auto gpu = cuda::CudaEngine::make(noting(own, what), device.get(), &tokens, std::move(*cache));
  REQUIRE_MESSAGE(gpu.has_value(), (gpu ? std::string() : gpu.error().text()));
  std::unique_ptr<cpu::CpuEngine> cpu;
  if (what.compare) {
    cpu::CompressedConfig config{.core = what.config, .score = score, .seed = 9, .weights = what.weights};
    config.force_outcomes = [&](RequestId request, uint32_t head) -> std::span<const uint32_t> {
      return record->by_gpu.at({request, head});
    };
    auto made = cpu::CompressedCache::make(config, memory_on_cpu(own), &weights);
    REQUIRE(made);
    cpu = std::make_unique<cpu::CpuEngine>(cpu::CpuEngineConfig{}, &weights, &tokens, std::move(*made));
  }
  std::unique_ptr<cpu::CpuEngine> judge;
  const cpu::CompressedCache* judged = nullptr;
  if (what.judge) {
    auto made =
        cpu::CompressedCache::make({.core = what.config, .score = score, .seed = 9, .weights = what.weights},
                                   memory_on_cpu(own), &weights);
    REQUIRE(made);
    judged = made->get();
    judge = std::make_unique<cpu::CpuEngine>(cpu::CpuEngineConfig{}, &weights, &tokens, std::move(*made));
  }
  const std::unique_ptr<DenseTwin> dense = what.dense ? dense_twin(what, own, *device, &tokens) : nullptr;
  const std::unique_ptr<cuda::CudaEngine> twin =
      what.launched || what.on_host ? other_twin(what, gpu_options, own, weights, *device, &tokens) : nullptr;
  PairedEngines both({gpu->get(), cpu.get(), dense.get(), judge.get(), judged, twin.get()});
  record = &both;
  RunOptions options;
  options.check_invariants = true;
  options.engines = {what.config};
  ScriptClient client({.seed = what.seed,
                       .sessions = what.sessions,
                       .requests_per_session = 2,
                       .unit_tokens = what.config.unit_tokens,
                       .prompt_tokens_max = 150,
                       .output_tokens_max = 30,
                       .cancels_per_100 = what.cancels,
                       .spans = what.spans});
  cpu::CpuBackend backend({{what.config.steps_in_flight_max}}, &both, drawn_times(what.seed));
  const RunEnd end = run(options, tokens.watch(&client), &backend, {});
  CHECK(end.idle);
  CHECK(client.content());
  both.replays = (*gpu)->graph_replays();
  return both;
}

inline std::string name_of(const Method& method) {
  const bool at_turns = method.compression_trigger == CompressionTrigger::kTurnStart;
  return std::string(method.scorer) + " " + method.budget + " " + method.layout + " " + method.precision +
         (at_turns ? " at turn start" : "");
}

inline void give_room(BudgetSpec* budget) {
  budget->kv_entries = 8192, budget->ratio = kWhole, budget->retained_min = 512;
  budget->mu.assign(budget->mu.size(), kWhole);
  budget->keeps_all.assign(budget->keeps_all.size(), true);
}

// Packed, a number near the midpoint of two codes may get the other one: packed_test.cc.
inline double method_tolerance(std::string_view precision, const LlmSpec& llm) {
  if (precision == "bf16") return bf16_tolerance(llm);
  return precision == "fp8" ? 0.016 : 0.045;
}

// The page tables of a request.
inline uint32_t tables_of(const CoreConfig& config) {
  return layout_traits(config.policies.layout).has_groups ? config.policies.layout_spec.groups() : 1;
}

// The steps, counted from 0, whose logits are off, with their errors; to find the first one that is wrong.
inline std::string steps_off(const PairedEngines& result, double tolerance) {
  std::string out;
  for (size_t step = 0; step < result.errors.size(); ++step) {
    if (!(result.errors[step] < tolerance)) out += fmt::format(" {}: {:.4f}", step, result.errors[step]);
  }
  return out;
}

// Compares logits with the CPU engine that retains the GPU's entries, in pools so small that requests are
// preempted. Returns the number of preemptions.
inline uint64_t check_under_pressure(const std::vector<Method>& methods) {
  uint64_t preemptions = 0;
  for (const Method& method : methods) {
    const std::string name = name_of(method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    ExpectedOutcome what{
        .llm = llm, .config = cuda_config(method, llm), .seed = 3, .compare = true, .cancels = 20};
    what.config.pages_gpu = 14 * tables_of(what.config) * 16 / what.config.page_tokens;
    const PairedEngines result = run_both(what);
    const double tolerance = method_tolerance(method.precision, llm);
    CHECK_MESSAGE(result.worst < tolerance, steps_off(result, tolerance));
    preemptions += result.preemptions;
  }
  return preemptions;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CUDA_ENGINE_COMPRESS_BOTH_H_
