// Methods that drop cells on the GPU: with room for everything they are dense attention to the bit; with the
// GPU's choices imposed on it the CPU engine computes the same logits within bf16's rounding; what the
// engines choose by themselves overlaps. Packed cells likewise: their dense attention is the packed engine's.
// Steps replayed as graphs are those started one by one, to the bit.

#include <doctest/doctest.h>

#include <map>

#include "engine/cpu/cpu_backend.h"
#include "engine/cuda/caches.h"
#include "engine/cuda/packed.h"
#include "engine/driver.h"
#include "tests/cpu/compress_run.h"
#include "tests/cuda/cuda_steps.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// The same steps on the identity of every axis: entries as they are, pages by position.
class DenseTwin {
 public:
  // `by_position`: the layout's own pages are.
  DenseTwin(std::unique_ptr<cuda::CudaEngine> engine, uint32_t page_tokens, bool by_position)
      : engine_(std::move(engine)), page_tokens_(page_tokens), by_position_(by_position) {}

  std::vector<float> step(LaunchStep launch, uint32_t offset) {
    std::vector<PageGrant> grants;
    for (uint32_t i = 0; !by_position_ && i < launch.entries.size(); ++i) {
      const PlanEntry& entry = launch.entries[i];
      uint32_t& pages = pages_[entry.call];
      if (entry.first && offset == 0) pages = 0;
      for (; pages * page_tokens_ < entry.context + offset + entry.tokens; ++pages)
        grants.push_back({offset, i, PageId{next_++}});
    }
    if (!by_position_) launch.grants = grants;
    launch.compressions = {};
    StepValues values;
    engine_->step(launch, offset, &values);
    return engine_->logits();
  }
  void told(const Command& command) { engine_->told(command); }

 private:
  const std::unique_ptr<cuda::CudaEngine> engine_;
  const uint32_t page_tokens_;
  const bool by_position_;
  std::map<CallId, uint32_t> pages_;
  uint32_t next_ = 0;  // pages are used once
};

// One step after the other on the GPU and on what it is compared with.
class Both final : public OutcomeSource {
 public:
  struct Parts {
    cuda::CudaEngine* gpu = nullptr;
    cpu::CpuEngine* cpu = nullptr;         // may be null
    DenseTwin* dense = nullptr;            // likewise
    cuda::CudaEngine* launched = nullptr;  // likewise: the first one, but for its graphs
  };
  explicit Both(const Parts& parts) : parts_(parts) {}

  void step(const LaunchStep& launch, uint32_t offset, StepValues* values) override {
    parts_.gpu->step(launch, offset, values);
    compressions += launch.compressions.size();
    const std::vector<float> logits = parts_.gpu->logits();
    if (parts_.dense != nullptr) {
      ++steps;
      unequal += parts_.dense->step(launch, offset) != logits;
    }
    if (parts_.launched != nullptr) {
      StepValues launched;
      parts_.launched->step(launch, offset, &launched);
      unequal += parts_.launched->logits() != logits || launched.kept_live != values->kept_live;
    }
    if (parts_.cpu == nullptr) return;
    StepValues same;
    parts_.cpu->step(launch, offset, &same);
    CHECK(same.kept_counts == values->kept_counts);
    CHECK(same.kept_live == values->kept_live);
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
  void told(const Command& command) override {
    const auto* drop = std::get_if<DropCallState>(&command);
    preemptions += drop != nullptr && drop->reason == DropCallState::Reason::kPreempted;
    parts_.gpu->told(command);
    if (parts_.cpu != nullptr) parts_.cpu->told(command);
    if (parts_.dense != nullptr) parts_.dense->told(command);
    if (parts_.launched != nullptr) parts_.launched->told(command);
  }

  double worst = 0;
  std::vector<double> errors;  // of steps with samples
  uint64_t preemptions = 0, steps = 0, unequal = 0, compressions = 0, heads_that_chose = 0, replays = 0;

 private:
  const Parts parts_;
};

// Heads of 64 and 128, GQA, two KV heads and one.
std::vector<LlmSpec> models() { return {cuda_models()[4], cuda_models()[6]}; }

CoreConfig cuda_config(const Method& method, const LlmSpec& llm) {
  CoreConfig config = config_of(method, llm);
  if (config.page_tokens != 1) config.page_tokens = config.unit_tokens = 16;
  BudgetSpec& budget = config.policies.budget_spec;
  budget.sinks = 4, budget.window = 8, budget.cells = 40, budget.interval = 3, budget.chunk_tokens = 32;
  config.step_tokens_max = 96;
  RetrievalSpec& quest = config.policies.retrieval_spec;
  if (config.policies.retrieval == "all") return config;
  quest.budget_tokens = 64, quest.sink_tokens = quest.window_tokens = 16;
  budget.ratio = kWhole / 3 * 2;
  for (auto& mean : budget.mu) mean = kWhole / 2 + mean;
  return config;
}

struct Wanted {
  LlmSpec llm;
  CoreConfig config;
  uint64_t seed = 1;
  bool dense = false;     // beside the identity of every axis
  bool compare = false;   // beside the CPU engine, which keeps what the GPU kept
  bool launched = false;  // beside an engine without graphs
  uint32_t cancels = 0;
};

using Kept = std::map<std::pair<CallId, uint32_t>, std::vector<uint32_t>>;

Both run_both(const Wanted& what) {
  const auto wrong = validate_core_config(what.config);
  REQUIRE_MESSAGE(!wrong.has_value(), wrong.value_or(""));
  const ModelWeights weights = ModelWeights::random(what.llm, what.seed);
  const std::unique_ptr<cuda::DeviceModel> device = on_device(weights);
  cpu::IdentityTokens tokens(
      {.seed = what.seed, .unit_tokens = what.config.unit_tokens, .vocab = what.llm.vocab});
  cuda::CudaEngineConfig own;
  own.page_tokens = what.config.page_tokens, own.pages_gpu = what.config.pages_gpu;
  own.rows_max = what.config.step_tokens_max, own.samples_max = what.config.calls_max;
  own.poison = true;
  Kept kept;
  const kernels::ScoreSpec score = score_of(what.config);
  cuda::CompressedOptions gpu_options;
  gpu_options.config = {.core = what.config, .score = score, .seed = 9};
  gpu_options.kept = [&](CallId call, uint32_t head, std::span<const uint32_t> positions) {
    kept[{call, head}].assign(positions.begin(), positions.end());
  };
  const auto refused = cuda::check_compressed(what.config, score, what.llm);
  REQUIRE_MESSAGE(!refused.has_value(), refused.value_or(""));
  auto cache =
      cuda::make_compressed(gpu_options, {own.page_tokens, own.pages_gpu, 0, own.rows_max, true}, &weights);
  REQUIRE(cache);
  auto gpu = cuda::CudaEngine::make(own, device.get(), &tokens, std::move(*cache));
  REQUIRE_MESSAGE(gpu.has_value(), (gpu ? std::string() : gpu.error().text()));
  std::unique_ptr<cpu::CpuEngine> cpu;
  if (what.compare) {
    cpu::CompressedConfig config{.core = what.config, .score = score, .seed = 9};
    config.impose = [&](CallId call, uint32_t head) -> std::span<const uint32_t> {
      return kept.at({call, head});
    };
    auto made = cpu::CompressedCache::make(config, {own.page_tokens, own.pages_gpu, 0, true}, &weights);
    REQUIRE(made);
    cpu = std::make_unique<cpu::CpuEngine>(cpu::CpuEngineConfig{}, &weights, &tokens, std::move(*made));
  }
  std::unique_ptr<DenseTwin> dense;
  if (what.dense) {
    cuda::OwnedCache all;
    if (what.config.policies.precision != "bf16") {
      const Format format = make_axes(what.config.policies).precision->prompt_format();
      auto packed = cuda::make_packed({format, what.config.policies.precision_spec.group},
                                      {own.page_tokens, own.pages_gpu, 0, own.rows_max, true}, &what.llm);
      REQUIRE(packed);
      all = std::move(*packed);
    }
    auto twin = cuda::CudaEngine::make(own, device.get(), &tokens, std::move(all));
    REQUIRE(twin);
    dense = std::make_unique<DenseTwin>(std::move(*twin), own.page_tokens, what.config.prefix_cache);
  }
  std::unique_ptr<cuda::CudaEngine> launched;
  if (what.launched) {
    gpu_options.kept = nullptr;
    auto twin_cache =
        cuda::make_compressed(gpu_options, {own.page_tokens, own.pages_gpu, 0, own.rows_max, true}, &weights);
    REQUIRE(twin_cache);
    own.graphs_max = 0;
    auto twin = cuda::CudaEngine::make(own, device.get(), &tokens, std::move(*twin_cache));
    REQUIRE(twin);
    launched = std::move(*twin);
  }
  Both both({gpu->get(), cpu.get(), dense.get(), launched.get()});
  RunOptions options;
  options.check_invariants = true;
  options.engines = {what.config};
  ScriptClient client({.seed = what.seed,
                       .sessions = 3,
                       .calls_per_session = 2,
                       .unit_tokens = what.config.unit_tokens,
                       .prompt_tokens_max = 150,
                       .output_tokens_max = 30,
                       .cancels_per_100 = what.cancels});
  cpu::CpuBackend world({{what.config.steps_in_flight_max}}, &both, drawn_times(what.seed));
  const RunEnd end = run(options, tokens.watch(&client), &world, {});
  CHECK(end.idle);
  CHECK(client.content());
  both.replays = (*gpu)->graph_replays();
  return both;
}

const std::vector<Method>& methods() {
  static const std::vector<Method> all = {
      {"knorm", "ratio", "compact"},
      {"knorm", "uniform", "ragged", 1},
      {"keydiff", "ratio", "ragged", 2},
      {"random", "reserved", "ragged", 2, Clustering::kAcrossLayers},
      {"streaming_llm", "uniform", "compact"},
      {"streaming_llm", "uniform", "arena"},
      {"duo_attention", "head_masks", "ragged", 1},
      {"duo_attention", "head_masks", "arena", 1},
      {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer},
      {"fastkvzip", "released", "ragged", 2},
      {"trimkv", "uniform", "compact"},
      {"snapkv", "uniform", "compact"},
      {"snapkv", "ada", "ragged", 1},
      {"snapkv", "top_across_layers", "ragged", 2},
      {"snapkv", "uniform", "page_mask_dead"},
      {"pyramidkv", "pyramid", "ragged", 1},
      {"finch", "uniform", "compact_rerotate"},
      {"tova", "uniform", "compact"},
      {"h2o", "uniform", "compact"},
      {"h2o", "uniform", "compact_rerotate"},
      {"h2o_prefill", "uniform", "compact"},
      {"raas", "uniform", "ragged", 1},
      {"knorm", "ratio", "slot_dead", 0, Clustering::kAdjacent, Moment::kPromptEnd},
      {"fastkvzip", "uniform", "page_mask_dead", 0, Clustering::kAdjacent, Moment::kPromptEnd},
      {"judge_q", "uniform", "compact"},
      {"judge_q", "ada", "ragged", 1},
      {"judge_q", "uniform", "page_mask_dead"},
      {"kvzip", "top_across_layers", "ragged", 1},
      {"kvzip", "ratio", "compact_rerotate"},
      {"expected_attention", "ratio", "compact"},
      {"critical_kv", "ada", "ragged", 1},
      {"intent_rule", "uniform", "slot_dead"},
      {"intent_rule", "uniform", "page_mask_dead"},
      {"intent_residual", "ratio", "page_mask_dead"},
      {"intent_rule", "uniform", "compact"},
  };
  return all;
}

Method packed_as(const char* precision, Method method) {
  method.precision = precision;
  return method;
}

const std::vector<Method>& packed_methods() {
  static const std::vector<Method> all = {
      packed_as("int4", {"knorm", "ratio", "compact"}),
      packed_as("fp8", {"knorm", "uniform", "ragged", 1}),
      packed_as("fp4", {"keydiff", "ratio", "ragged", 2}),
      packed_as("int4", {"random", "reserved", "ragged", 2, Clustering::kAcrossLayers}),
      packed_as("int4", {"streaming_llm", "uniform", "arena"}),
      packed_as("fp8", {"duo_attention", "head_masks", "arena", 1}),
      packed_as("int4", {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer}),
      packed_as("fp4", {"fastkvzip", "released", "ragged", 2}),
      packed_as("fp8", {"trimkv", "uniform", "compact"}),
      packed_as("int4", {"snapkv", "uniform", "compact"}),
      packed_as("fp4", {"snapkv", "ada", "ragged", 1}),
      packed_as("int4", {"snapkv", "uniform", "page_mask_dead"}),
      packed_as("int4", {"tova", "uniform", "compact"}),
      packed_as("int4", {"judge_q", "uniform", "compact"}),
      packed_as("fp8", {"judge_q", "ada", "ragged", 1}),
      packed_as("int4", {"judge_q", "uniform", "page_mask_dead"}),
      packed_as("int4", {"kvzip", "top_across_layers", "ragged", 1}),
      packed_as("int4", {"expected_attention", "ratio", "compact"}),
      packed_as("int4", {"critical_kv", "ada", "ragged", 1}),
      packed_as("int4", {"knorm", "ratio", "slot_dead", 0, Clustering::kAdjacent, Moment::kPromptEnd}),
  };
  return all;
}

// Quest among what is left.
const std::vector<Method>& quest_methods() {
  const auto quest = [](const char* precision, Method method) {
    method.precision = precision, method.retrieval = "quest";
    return method;
  };
  static const std::vector<Method> all = {
      quest("int4", {"fastkvzip", "reserved", "ragged", 2, Clustering::kAcrossLayers}),
      quest("int4", {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer}),
      quest("fp8", {"keydiff", "ratio", "compact"}),
      quest("fp4", {"knorm", "ratio", "ragged", 2}),
  };
  return all;
}

// A number that lies near the middle of two codes may get the other one: packed_test.cc.
double packed_tolerance(const Method& method) { return std::string(method.precision) == "fp8" ? 0.03 : 0.08; }

std::string name_of(const Method& method) {
  return std::string(method.scorer) + " " + method.budget + " " + method.layout + " " + method.precision;
}

void give_room(BudgetSpec* budget) {
  budget->cells = 8192, budget->ratio = kWhole, budget->kept_min = 512;
  budget->mu.assign(budget->mu.size(), kWhole);
  budget->keeps_all.assign(budget->keeps_all.size(), true);
}

}  // namespace

TEST_CASE("G-2 cuda compress: with room for everything, every method is dense attention, to the bit") {
  for (const LlmSpec& llm : models()) {
    for (const Method& method : methods()) {
      const std::string name = name_of(method);
      CAPTURE(name);
      Wanted what{.llm = llm, .config = cuda_config(method, llm), .seed = 7, .dense = true};
      give_room(&what.config.policies.budget_spec);
      const Both result = run_both(what);
      CHECK(result.steps > 5);
      CHECK(result.unequal == 0);
    }
  }
}

TEST_CASE("G-3 cuda compress: logits are the CPU engine's with the same cells left, within rounding") {
  for (const Method& method : methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    double worst = 0;
    uint64_t compressions = 0;
    for (const LlmSpec& llm : models()) {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        CAPTURE(seed);
        Wanted what{.llm = llm, .config = cuda_config(method, llm), .seed = seed, .compare = true};
        what.config.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
        const Both result = run_both(what);
        CHECK(result.worst < bf16_tolerance(llm));
        worst = std::max(worst, result.worst);
        compressions += result.compressions;
      }
    }
    CHECK((compressions > 0) == (std::string(method.layout) != "arena"));
    MESSAGE(name << ": " << compressions << " compressions, worst relative error of logits " << worst);
  }
}

TEST_CASE("cuda compress: steps replayed as graphs are those started one by one, to the bit") {
  for (const Method& method : methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    uint64_t replays = 0;
    for (const LlmSpec& llm : models()) {
      Wanted what{.llm = llm, .config = cuda_config(method, llm), .seed = 5, .launched = true};
      const Both result = run_both(what);
      CHECK(result.unequal == 0);
      replays += result.replays;
    }
    // Not of methods that look at every row, or compress at every third one; nor where cells have no table.
    MESSAGE(name << ": " << replays << " steps were replays");
    if (method.scorer == std::string("snapkv") && method.layout == std::string("compact"))
      CHECK(replays > 20);
    if (method.scorer == std::string("fastkvzip") && method.layout == std::string("ragged"))
      CHECK(replays > 20);
    if (method.scorer == std::string("h2o")) CHECK(replays == 0);
  }
}

TEST_CASE("X-3 cuda compress: under pressure, with preemptions and cancelled calls, the same holds") {
  uint64_t preemptions = 0;
  for (const Method& method : methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    Wanted what{.llm = llm, .config = cuda_config(method, llm), .seed = 3, .compare = true, .cancels = 20};
    const uint32_t groups =
        make_axes(what.config.policies).layout->has_groups() ? what.config.policies.layout_spec.groups() : 1;
    what.config.pages_gpu = 14 * groups * 16 / what.config.page_tokens;
    const Both result = run_both(what);
    CHECK(result.worst < bf16_tolerance(llm));
    preemptions += result.preemptions;
  }
  MESSAGE(preemptions << " preemptions");
}

TEST_CASE("G-2 cuda compress: packed, with room for everything, is the packed engine, to the bit") {
  for (const LlmSpec& llm : models()) {
    for (const Method& method : packed_methods()) {
      const std::string name = name_of(method);
      CAPTURE(name);
      Wanted what{.llm = llm, .config = cuda_config(method, llm), .seed = 7, .dense = true};
      give_room(&what.config.policies.budget_spec);
      const Both result = run_both(what);
      CHECK(result.steps > 5);
      CHECK(result.unequal == 0);
    }
  }
}

TEST_CASE("G-3 cuda compress: packed, logits are the CPU engine's with the same cells left") {
  for (const Method& method : packed_methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    double worst = 0;
    uint64_t compressions = 0;
    for (const LlmSpec& llm : models()) {
      Wanted what{.llm = llm, .config = cuda_config(method, llm), .seed = 1, .compare = true, .cancels = 10};
      const Both result = run_both(what);
      CHECK(result.worst < packed_tolerance(method));
      worst = std::max(worst, result.worst);
      compressions += result.compressions;
    }
    CHECK((compressions > 0) == (std::string(method.layout) != "arena"));
    MESSAGE(name << ": " << compressions << " compressions, worst relative error of logits " << worst);
  }
}

TEST_CASE("X-3 cuda compress: packed, under pressure, with preemptions and cancelled calls, the same holds") {
  uint64_t preemptions = 0;
  for (const Method& method : packed_methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    Wanted what{.llm = llm, .config = cuda_config(method, llm), .seed = 3, .compare = true, .cancels = 20};
    const uint32_t groups =
        make_axes(what.config.policies).layout->has_groups() ? what.config.policies.layout_spec.groups() : 1;
    what.config.pages_gpu = 14 * groups * 16 / what.config.page_tokens;
    const Both result = run_both(what);
    CHECK(result.worst < packed_tolerance(method));
    preemptions += result.preemptions;
  }
  MESSAGE(preemptions << " preemptions");
}

TEST_CASE("G-2 cuda compress: Quest with a budget beyond every call is the packed engine, to the bit") {
  for (const Method& method : quest_methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    Wanted what{.llm = llm, .config = cuda_config(method, llm), .seed = 7, .dense = true};
    give_room(&what.config.policies.budget_spec);
    what.config.policies.retrieval_spec.budget_tokens = 1024;
    const Both result = run_both(what);
    CHECK(result.steps > 5);
    CHECK(result.unequal == 0);
  }
}

TEST_CASE("G-3 cuda compress: Quest among packed cells that are left reads what the CPU engine reads") {
  for (const Method& method : quest_methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    for (const bool pressure : {false, true}) {
      const LlmSpec llm = models()[0];
      Wanted what{.llm = llm, .config = cuda_config(method, llm), .seed = 2, .compare = true, .cancels = 10};
      const uint32_t groups = make_axes(what.config.policies).layout->has_groups()
                                  ? what.config.policies.layout_spec.groups()
                                  : 1;
      if (pressure) what.config.pages_gpu = 16 * groups;
      Both result = run_both(what);
      CHECK(result.heads_that_chose > 0);
      CHECK(result.compressions > 0);
      // Where two pages are nearly equal, another one may be read.
      std::sort(result.errors.begin(), result.errors.end());
      const double middle = result.errors[result.errors.size() / 2];
      CHECK(middle < packed_tolerance(method) / 2);
      MESSAGE(name << ": " << result.heads_that_chose << " heads chose, " << result.preemptions
                   << " preemptions, relative error of logits: half of the steps within " << middle
                   << ", nine of ten within " << result.errors[result.errors.size() * 9 / 10] << ", worst "
                   << result.worst);
    }
  }
}

TEST_CASE("cuda compress: what is not computed of packed cells is refused by name") {
  const LlmSpec llm = models()[0];
  const auto refused = [&](Method method, uint32_t page_tokens = 16) {
    CoreConfig config = cuda_config(method, llm);
    config.page_tokens = config.unit_tokens = page_tokens;
    return cuda::check_compressed(config, score_of(config), llm).value_or("computed");
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(says(refused(packed_as("int4", {"h2o", "uniform", "compact"})), "gathers"));
  CHECK(says(refused(packed_as("fp8", {"raas", "uniform", "ragged", 1})), "gathers"));
  Method method = quest_methods()[0];
  CHECK(refused(method) == "computed");
  CHECK(says(refused(method, 32), "pages of 32"));
  method.budget = "released";
  CHECK(says(refused(method), "counts are known"));
  method = quest_methods()[0], method.precision = "bf16";
  CHECK(says(refused(method), "quest of fp8, int4 or fp4 is"));
}
