// A soak test of the CUDA engine: random scenarios of every kind in a pool that is too small, with cancelled
// requests and failing copies. Each scenario runs twice. Both runs compute the same bits, and the second
// leaves as much free GPU memory as there was before it. `cuda_soak_test FIRST END` runs seeds [FIRST, END).

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>

#include "engine/cuda/caches.h"
#include "engine/cuda/device/buffer.h"
#include "engine/cuda/device/device_facts.h"
#include "tests/unit/cpu_compression/compress_run.h"
#include "tests/unit/cuda_engine/retrieved_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

uint64_t first_seed = 1, end_seed = 40;
bool shared = false;

// Makes some copies fail: they are performed, but must not be read.
class FailingCopies final : public Backend {
 public:
  FailingCopies(Backend* backend, uint64_t seed) : backend_(*backend), prng_(seed) {}
  void submit(const Command& command) override { backend_.submit(command); }
  bool next(Instant* now, Event* event) override {
    if (!backend_.next(now, event)) return false;
    fail(event);
    return true;
  }
  bool interrupt(EngineId engine, Event* event) override {
    if (!backend_.interrupt(engine, event)) return false;
    fail(event);
    return true;
  }
  uint64_t copies = 0, failed = 0;

 private:
  void fail(Event* event) {
    const auto* done = std::get_if<TransferDone>(event);
    if (done == nullptr) return;
    ++copies;
    if (!prng_.chance(1, 4)) return;
    ++failed;
    *event = TransferFailed{done->engine, done->transfer};
  }
  Backend& backend_;
  Prng prng_;
};

enum class Kind : uint32_t { kDense, kHostTier, kOffload, kCompressed, kRetrieved, kForced, kKinds };
const std::string kNames[] = {"dense", "host tier", "offload", "drops KV entries", "retrieves", "forced"};

const Method kMethods[] = {{"snapkv", "uniform", "compact"},
                           {"knorm", "ratio", "ragged", 2},
                           {"snapkv", "ada", "ragged", 1},
                           {"fastkvzip", "released", "ragged", 2},
                           {"streaming_llm", "uniform", "ring"},
                           {"h2o", "uniform", "compact"},
                           {"raas", "uniform", "ragged", 1},
                           {"kvzip", "top_across_layers", "ragged", 1},
                           {"intent_rule", "uniform", "page_mask"},
                           {"judge_q", "ada", "ragged", 1},
                           {"expected_attention", "ratio", "compact"},
                           {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer}};

// The scenario of one seed.
struct Scene {
  Kind kind = Kind::kDense;
  CoreConfig config;
  RecallCopies copies{};
  uint64_t seed = 0;
  uint32_t prompt_max = 60;
};

void draw_plain(Kind kind, Prng* prng, CoreConfig* config) {
  config->page_tokens = prng->chance(1, 2) ? 16 : 32;
  config->unit_tokens = config->page_tokens;
  config->pages_gpu = static_cast<uint32_t>(prng->range(160, 320)) / config->page_tokens;
  if (kind == Kind::kDense) return;
  config->policies.placement = "host";
  config->pages_host = config->pages_gpu;
  config->offload_pages_target = config->pages_gpu / 2;
  config->offload_batch_pages = 4;
  if (kind == Kind::kOffload) config->preemption = PreemptionKind::kSwap;
}

void draw_retrieved(Prng* prng, Scene* scene) {
  const char* const names[] = {"freekv", "arkvale", "quest"};
  RetrievalSetting setting = setting_of(names[prng->range(0, 2)], -0.1);
  setting.pages_gpu = static_cast<uint32_t>(prng->range(34, 50)), setting.pages_host = 120;
  if (prng->chance(1, 2)) setting.copies.layout = HostPageLayout::kNhd;
  if (setting.retrieval == "quest") setting.spec.layers_dense = static_cast<uint32_t>(prng->range(0, 1));
  scene->config = core_of(setting);
  scene->copies = setting.copies;
}

Scene draw_scene(uint64_t seed, const LlmSpec& llm) {
  Prng prng(draw({seed, 4711}));
  Scene out;
  out.seed = seed;
  out.kind = static_cast<Kind>(seed % static_cast<uint64_t>(Kind::kKinds));
  if (out.kind == Kind::kCompressed) {
    out.config = config_of(kMethods[prng.range(0, std::size(kMethods) - 1)], llm);
    out.config.page_tokens = out.config.unit_tokens = 16;
    BudgetSpec& budget = out.config.policies.budget_spec;
    budget.sinks = 4, budget.window = 8, budget.kv_entries = 40, budget.chunk_tokens = 32;
    const PolicySet& set = out.config.policies;
    const uint32_t groups = layout_traits(set.layout).has_groups ? set.layout_spec.groups() : 1;
    out.config.pages_gpu = static_cast<uint32_t>(prng.range(14, 24)) * groups;
    out.prompt_max = 150;
  } else if (out.kind == Kind::kRetrieved || out.kind == Kind::kForced) {
    draw_retrieved(&prng, &out);
    out.prompt_max = 330;
  } else {
    draw_plain(out.kind, &prng, &out.config);
  }
  out.config.requests_max = static_cast<uint32_t>(prng.range(2, 6));
  out.config.step_tokens_max = static_cast<uint32_t>(prng.range(48, 96));
  out.config.steps_in_flight_max = static_cast<uint32_t>(prng.range(1, 2));
  const auto problem = validate_core_config(out.config);
  REQUIRE_MESSAGE(!problem.has_value(), problem.value_or(""));
  return out;
}

cuda::OwnedCache cache_of(const Scene& scene, const OnDevice& d, uint64_t delays) {
  const CoreConfig& config = scene.config;
  const cuda::KvMemory memory{config.page_tokens, config.pages_gpu, config.pages_host, config.step_tokens_max,
                              true};
  if (scene.kind == Kind::kCompressed) {
    cuda::CompressedOptions options;
    options.config = {.core = config, .score = score_of(config), .seed = 9};
    const auto refused = cuda::check_compressed(config, options.config.score, d.llm);
    REQUIRE_MESSAGE(!refused.has_value(), refused.value_or(""));
    auto made = cuda::make_compressed(options, memory, &d.weights);
    REQUIRE(made);
    return std::move(*made);
  }
  if (config.policies.retrieval == "all") return nullptr;
  auto made = cuda::make_retrieved({method_named(config.policies.retrieval),
                                    config.policies.retrieval_spec,
                                    scene.copies,
                                    {.delays = delays}},
                                   memory, d.llm);
  REQUIRE(made.has_value());
  return std::move(*made);
}

struct SceneRun {
  std::map<RequestId, std::vector<float>> logits;
  uint64_t digest = 0, preemptions = 0, copies = 0, failed = 0, cancelled = 0;
};

// `delays` other than 0: the streams of retrieval are late at random. This may change nothing.
SceneRun run_scene(const Scene& scene, const OnDevice& d, uint64_t delays) {
  const CoreConfig& config = scene.config;
  cpu::IdentityTokens tokens({.seed = scene.seed, .unit_tokens = config.unit_tokens, .vocab = d.llm.vocab});
  cuda::CudaEngineConfig own;
  own.page_tokens = config.page_tokens, own.pages_gpu = config.pages_gpu, own.pages_host = config.pages_host;
  own.rows_max = config.step_tokens_max, own.samples_max = config.requests_max;
  own.poison = true;
  auto engine = cuda::CudaEngine::make(own, d.model.get(), &tokens, cache_of(scene, d, delays));
  REQUIRE_MESSAGE(engine.has_value(), (engine ? std::string() : engine.error().text()));
  CudaOutcome heard;
  CudaListener listener(engine->get(), d.llm.vocab, true, &heard);
  std::optional<sim::RetrievalSource> message;
  std::optional<ForcedOutcomes> forcing;
  OutcomeSource* source = &listener;
  if (scene.kind == Kind::kForced && config.policies.retrieval != "quest") {
    message.emplace(sim::RetrievalBehaviour{scene.seed, uint64_t{1} << 30, {}, {uint64_t{1} << 30}},
                    method_named(config.policies.retrieval), config.policies.retrieval_spec,
                    config.page_tokens, d.llm.layers, d.llm.kv_heads);
    source = &forcing.emplace(&*message, &listener);
  }
  ScriptClient client({.seed = scene.seed,
                       .sessions = 4,
                       .requests_per_session = 3,
                       .unit_tokens = config.unit_tokens,
                       .prompt_tokens_max = scene.prompt_max,
                       .output_tokens_max = 40,
                       .cancels_per_100 = scene.seed % 2 == 0 ? 30u : 0u});
  cpu::CpuBackend backend({{config.steps_in_flight_max}}, source, drawn_times(scene.seed));
  FailingCopies failing(&backend, scene.seed);
  RunOptions options;
  options.check_invariants = true;
  options.engines = {config};
  Recorder recorder(options, {"soak", scene.seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &failing, {&recorder});
  CHECK(end.idle);
  CHECK(client.content());
  check_replays(recorder.finish(end), end.digest);
  if (forcing) CHECK(forcing->recalls().met == forcing->recalls().forced_outcome);
  SceneRun out{std::move(heard.logits), end.digest, heard.preemptions, failing.copies, failing.failed, 0};
  for (const ScriptClient::Answer& answer : client.answers())
    out.cancelled += answer.kind == ScriptClient::Answer::Kind::kCancelled;
  return out;
}

struct Memory {
  uint64_t device = 0, pinned = 0, free = 0;
};
Memory memory_now() {
  return {cuda::Buffer::live_bytes(cuda::Buffer::Kind::kDevice),
          cuda::Buffer::live_bytes(cuda::Buffer::Kind::kPinned), cuda::device_facts().memory_free};
}

// Models of every kind of head; each is on the GPU for its runs only.
LlmSpec model_for(uint64_t seed) { return seed / 6 % 2 == 0 ? cuda_models()[4] : cuda_models()[6]; }

}  // namespace

TEST_CASE("soak: equal runs are equal to the bit, and memory is freed") {
  std::map<uint64_t, SceneRun> first;
  struct Totals {
    uint64_t runs = 0, requests = 0, preemptions = 0, copies = 0, failed = 0, cancelled = 0;
  } totals[static_cast<size_t>(Kind::kKinds)];
  Memory before;
  for (const bool again : {false, true}) {
    // Everything that is loaded on first use has been loaded by now.
    if (again) before = memory_now();
    for (uint64_t seed = first_seed; seed < end_seed; ++seed) {
      CAPTURE(seed);
      const OnDevice d(model_for(seed));
      const Scene scene = draw_scene(seed, d.llm);
      SceneRun out = run_scene(scene, d, again ? seed : 0);
      if (!again) {
        first[seed] = std::move(out);
        continue;
      }
      const SceneRun& was = first.at(seed);
      CHECK(out.digest == was.digest);
      CHECK(out.logits == was.logits);
      Totals& sum = totals[static_cast<size_t>(scene.kind)];
      ++sum.runs, sum.requests += out.logits.size(), sum.preemptions += out.preemptions;
      sum.copies += out.copies, sum.failed += out.failed, sum.cancelled += out.cancelled;
    }
  }
  const Memory after = memory_now();
  CHECK(after.device == before.device);
  CHECK(after.pinned == before.pinned);
  if (!shared) CHECK(after.free == before.free);
  MESSAGE("device memory free before and after the second pass: " << before.free << ", " << after.free);
  for (size_t kind = 0; kind < std::size(totals); ++kind) {
    const Totals& t = totals[kind];
    MESSAGE(kNames[kind] << ": " << t.runs << " runs, " << t.requests << " requests, " << t.preemptions
                         << " preemptions, " << t.cancelled << " cancelled, " << t.failed << " of "
                         << t.copies << " copies failed");
  }
}

int main(int argc, char** argv) {
  if (const Result<void> ok = cuda::check_gpu(); !ok) {
    std::printf("skipped: %s\n", ok.error().text().c_str());
    return 77;
  }
  shared = argc > 3 && std::string(argv[3]) == "shared";
  if (argc >= 3)
    first_seed = std::strtoull(argv[1], nullptr, 10), end_seed = std::strtoull(argv[2], nullptr, 10);
  return doctest::Context(1, argv).run();
}
