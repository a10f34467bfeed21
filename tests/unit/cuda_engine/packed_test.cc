// Packed KV on CUDA compared with the CPU engine's; both get the same launches. Packed numbers are rounded
// twice, first to bf16 and then to the format, so one near the midpoint of two codes may get the other code
// on the GPU. Errors are therefore compared with the error of the format itself.
// tests/unit/cuda_kernels/convert_entries_test.cu checks that bytes are equal to the bit for equal rows.

#include "engine/cuda/packed/packed.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "engine/common/cpu_backend.h"
#include "engine/cpu/packed/mixed_precision_cache.h"
#include "engine/cpu/packed/packed_cache.h"
#include "engine/methods/registry.h"
#include "engine/recorder/recorder.h"
#include "engine/runtime/driver.h"
#include "tests/support/script_client.h"
#include "tests/unit/cpu_engine/backend_checks.h"
#include "tests/unit/cuda_engine/cuda_steps.h"
#include "tests/unit/cuda_engine/issued_lists.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr RequestId kA{1}, kB{2}, kC{3};
constexpr uint32_t kPage = 32, kPages = 120, kRows = 160;

struct Kind {
  Format format;
  uint32_t residual;
};
constexpr Kind kKinds[] = {{Format::kFp8, 0}, {Format::kInt4, 0}, {Format::kFp4, 0}, {Format::kInt2, 64}};

LlmSpec model_of(uint32_t head_dim, uint32_t query_heads, uint32_t kv_heads) {
  LlmSpec m = tiny_model("llama", query_heads, kv_heads);
  m.head_dim = head_dim, m.layers = 3, m.hidden = 256, m.intermediate = 256, m.vocab = 256;
  return m;
}
// Head sizes that the fused kernels support, and one that they do not.
std::vector<LlmSpec> models() { return {model_of(64, 8, 2), model_of(128, 4, 4), model_of(32, 4, 2)}; }

template <typename T>
T take(Result<T> made) {
  if (!made) check_failed(made.error().text().c_str(), __FILE__, __LINE__);
  return std::move(*made);
}

std::unique_ptr<cuda::CudaEngine> gpu_engine(const cuda::DeviceModel& model, const cpu::TokenIds* tokens,
                                             cuda::OwnedCache cache, uint32_t graphs = 64,
                                             std::vector<uint32_t> row_sizes = {}) {
  cuda::CudaEngineConfig config;
  config.row_sizes = std::move(row_sizes);
  config.graphs_max = graphs;
  config.page_tokens = kPage, config.pages_gpu = kPages, config.pages_host = 20;
  config.rows_max = kRows, config.samples_max = 16, config.poison = true;
  return take(cuda::CudaEngine::make(config, &model, tokens, std::move(cache)));
}

struct PreparedEngine {
  explicit PreparedEngine(const LlmSpec& spec)
      : llm(spec), weights(ModelWeights::random(spec, 7)), device(on_device(weights)) {}
  const LlmSpec llm;
  const ModelWeights weights;
  const std::unique_ptr<cuda::DeviceModel> device;
};

using GpuSteps = EngineSteps<cuda::CudaEngine>;
GpuSteps gpu_steps(const PreparedEngine& p, const GivenTokens& tokens, const Kind& kind, uint64_t seed,
                   bool fused = true, uint32_t graphs = 64, std::vector<uint32_t> row_sizes = {}) {
  return {kPage, kPages, seed,
          gpu_engine(*p.device, &tokens,
                     take(cuda::make_packed({kind.format, 32, kind.residual, fused},
                                            {kPage, kPages, 20, kRows, true}, &p.llm)),
                     graphs, std::move(row_sizes))};
}

Steps plain_steps(const PreparedEngine& p, const GivenTokens& tokens, uint64_t seed) {
  return {{.page_tokens = kPage, .pages_gpu = kPages, .poison = true}, &p.weights, &tokens, seed};
}
EngineSteps<cpu::CpuEngine> cpu_steps(const PreparedEngine& p, const GivenTokens& tokens, const Kind& kind,
                                      uint64_t seed) {
  auto cache = take(cpu::PackedCache::make({.page_tokens = kPage, .pages_gpu = kPages, .poison = true}, p.llm,
                                           {kind.format, 32, kind.residual, 512}));
  return {kPage, kPages, seed,
          std::make_unique<cpu::CpuEngine>(cpu::CpuEngineConfig{}, &p.weights, &tokens, std::move(cache))};
}

// Sums of squared differences and sizes, over many logits.
struct Error {
  double differences = 0, sizes = 0;
  void add(const std::vector<float>& got, const std::vector<float>& expected) {
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double d = double{got[i]} - double{expected[i]};
      differences += d * d;
      sizes += double{expected[i]} * double{expected[i]};
    }
  }
  double relative() const { return std::sqrt(differences / sizes); }
};

// Steps of requests: chunks, decodes, chunks with decodes, and page ends in between.
template <typename Engine>
std::vector<std::vector<float>> drive(EngineSteps<Engine>* steps) {
  using Want = typename EngineSteps<Engine>::Want;
  std::vector<std::vector<float>> out;
  steps->begin(kA), steps->begin(kB), steps->begin(kC);
  for (const std::vector<Want>& wants :
       {std::vector<Want>{{kA, 90, false}}, {{kA, 70}}, {{kA, 1}, {kB, 100, false}}, {{kB, 30}, {kA, 1}}})
    out.push_back(steps->run(wants));
  for (int i = 0; i < 40; ++i) out.push_back(steps->run({{kB, 1}, {kA, 1}}));
  out.push_back(steps->run({{kC, 5}, {kA, 1}, {kB, 1}}));
  out.push_back(steps->run({{kC, 1}, {kB, 1}, {kA, 1}}, 5));
  return out;
}

GivenTokens tokens_of(const LlmSpec& llm) {
  GivenTokens tokens;
  tokens.give(kA, random_tokens(3, 260, llm.vocab), 160);
  tokens.give(kB, random_tokens(4, 260, llm.vocab), 130);
  tokens.give(kC, random_tokens(5, 260, llm.vocab), 5);
  return tokens;
}

Error error_of(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& expected) {
  Error out;
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) out.add(got[i], expected[i]);
  return out;
}

}  // namespace

TEST_CASE("cuda: packed formats give the CPU engine's logits, except for codes that rounding changes") {
  for (const LlmSpec& llm : models()) {
    const PreparedEngine p(llm);
    const GivenTokens tokens = tokens_of(llm);
    auto plain = plain_steps(p, tokens, 9);
    const auto exact = drive(&plain);
    for (const Kind& kind : kKinds) {
      auto on_cpu = cpu_steps(p, tokens, kind, 9);
      const auto expected = drive(&on_cpu);
      auto on_gpu = gpu_steps(p, tokens, kind, 5);  // on other pages
      const double error = error_of(drive(&on_gpu), expected).relative();
      const double format = error_of(expected, exact).relative();
      CAPTURE(std::string(format_name(kind.format)));
      CAPTURE(llm.head_dim);
      MESSAGE(std::string(format_name(kind.format)) << ", heads of " << llm.head_dim << ": relative error "
                                                    << error << ", of the format " << format);
      CHECK(error < bf16_tolerance(llm) + 0.5 * format);
    }
  }
}

TEST_CASE("cuda: decodes that read packed pages agree with those that read them unpacked") {
  for (const LlmSpec& llm : {models()[0], models()[1]}) {
    const PreparedEngine p(llm);
    const GivenTokens tokens = tokens_of(llm);
    for (const Kind& kind : kKinds) {
      auto fused = gpu_steps(p, tokens, kind, 5), staged = gpu_steps(p, tokens, kind, 5, false);
      const auto got = drive(&fused), expected = drive(&staged);
      CAPTURE(std::string(format_name(kind.format)));
      CHECK(got != expected);  // the two use different kernels
      CHECK(error_of(got, expected).relative() < bf16_tolerance(llm));
    }
  }
}

TEST_CASE("cuda: packed decodes replayed as graphs equal those launched without them, to the bit") {
  for (const LlmSpec& llm : {models()[0], models()[1]}) {
    const PreparedEngine p(llm);
    const GivenTokens tokens = tokens_of(llm);
    for (const Kind& kind : kKinds) {
      CAPTURE(std::string(format_name(kind.format)));
      uint64_t replays = 0;
      for (const uint32_t padded : {0u, 8u}) {
        CAPTURE(padded);
        const std::vector<uint32_t> sizes = padded > 0 ? std::vector{padded} : std::vector<uint32_t>();
        auto graphs = gpu_steps(p, tokens, kind, 5, true, 64, sizes);
        auto none = gpu_steps(p, tokens, kind, 5, true, 0, sizes);
        graphs.pad_to(padded), none.pad_to(padded);
        CHECK(drive(&graphs) == drive(&none));
        CHECK(graphs.engine().graph_replays() > std::max(uint64_t{30}, replays));  // more of padded steps
        replays = graphs.engine().graph_replays();
        CHECK(none.engine().graph_replays() == 0);
      }
    }
  }
}

TEST_CASE("cuda: packed bytes do not depend on pages, and reused pages equal computed ones to the bit") {
  for (const LlmSpec& llm : models()) {
    const PreparedEngine p(llm);
    GivenTokens tokens;
    for (const RequestId request : {kA, kB, kC})
      tokens.give(request, random_tokens(3, 260, llm.vocab), request == kA ? 240 : 168);
    for (const Kind& kind : kKinds) {
      CAPTURE(std::string(format_name(kind.format)));
      CAPTURE(llm.head_dim);
      const auto run = [&](uint64_t seed) {
        auto steps = gpu_steps(p, tokens, kind, seed);
        std::vector<std::vector<float>> out;
        steps.begin(kA);
        steps.run({{kA, 128, false}});
        steps.run({{kA, 64, false}});
        // KIVI: the first 128 KV entries are packed now. A request that reuses them has no exact ones.
        const std::vector<PageId> prefix(steps.pages(kA).begin(), steps.pages(kA).begin() + 4);
        steps.begin(kB, prefix);
        out.push_back(steps.run({{kB, 40}}));
        std::vector<PageId> host, target;
        for (uint32_t i = 0; i < 4; ++i)
          host.push_back(PageId{kPages + 3 * i}), target.push_back(steps.take());
        steps.engine().notify(
            StartTransfer{{}, TransferId{1}, TransferKind::kOffload, Tier::kGpu, Tier::kHost, prefix, host});
        steps.engine().notify(
            StartTransfer{{}, TransferId{2}, TransferKind::kLoad, Tier::kHost, Tier::kGpu, host, target});
        steps.begin(kC, target);
        out.push_back(steps.run({{kC, 40}}));
        out.push_back(steps.run({{kB, 1}}));
        out.push_back(steps.run({{kC, 1}}));
        return out;
      };
      const auto out = run(1);
      for (const float x : out[3]) REQUIRE(std::isfinite(x));
      CHECK(out[0] == out[1]);
      CHECK(out[2] == out[3]);
      CHECK(run(8) == out);
    }
  }
}

TEST_CASE("cuda: a request can reuse pages that another request of the same step packs") {
  for (const Kind& kind : {kKinds[0], kKinds[1], kKinds[2]}) {
    CAPTURE(std::string(format_name(kind.format)));
    const PreparedEngine p(models()[0]);
    GivenTokens tokens;
    for (const RequestId request : {kA, kB}) tokens.give(request, random_tokens(3, 260, p.llm.vocab), 100);
    // kB reuses the pages that kA fills, in the same step or in the next one.
    const auto run = [&](bool together) {
      auto cache =
          take(cuda::make_packed({kind.format, 32, 0, true}, {kPage, kPages, 20, kRows, true}, &p.llm));
      const auto engine = gpu_engine(*p.device, &tokens, std::move(cache));
      const std::vector<PageId> pages = {PageId{4}, PageId{7}};
      std::vector<PlanEntry> entries = {{kA, EntryKind::kChunk, true, false, 64, 0},
                                        {kB, EntryKind::kChunk, true, true, 36, 64}};
      std::vector<PageAllocation> allocations = {
          {0, 0, pages[0]}, {0, 0, pages[1]}, {0, 1, PageId{9}}, {0, 1, PageId{3}}};
      const PrefixHit prefix_hit{kB, pages};
      DataOutcomes values;
      if (together) {
        engine->step({.entries = entries, .allocations = allocations, .prefix_hits = {&prefix_hit, 1}}, 0,
                     &values);
        return engine->logits();
      }
      const std::span<const PlanEntry> first(entries.data(), 1);
      engine->step({.entries = first, .allocations = {allocations.data(), 2}, .prefix_hits = {}}, 0, &values);
      for (PageAllocation& allocation : allocations) allocation.entry = 0;
      engine->step({.step = StepId{1},
                    .entries = {entries.data() + 1, 1},
                    .allocations = {allocations.data() + 2, 2},
                    .prefix_hits = {&prefix_hit, 1}},
                   0, &values);
      return engine->logits();
    };
    const double error = relative_error(run(true), run(false));
    CHECK(error < bf16_tolerance(p.llm));  // matrix products of 100 rows and of 36
  }
}

namespace {

// All engines perform every step; the CPU engine's outcomes are used. `exact`: the engine without packing;
// null for mixed precision pages, which it cannot have.
class AllEngines final : public OutcomeSource {
 public:
  AllEngines(cuda::CudaEngine* gpu, cpu::CpuEngine* cpu, cpu::CpuEngine* exact)
      : gpu_(*gpu), cpu_(*cpu), exact_(exact) {}
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    DataOutcomes same;
    gpu_.step(launch, offset, &same);
    cpu_.step(launch, offset, values);
    const std::vector<float> got = gpu_.logits();
    const std::vector<float> expected(cpu_.logits().begin(), cpu_.logits().end());
    for (const float x : got) finite = finite && std::isfinite(x);
    error.add(got, expected);
    if (exact_ != nullptr) {
      exact_->step(launch, offset, &same);
      format.add(expected, {exact_->logits().begin(), exact_->logits().end()});
    }
    requantisations += launch.requantisations.size();
    prefix_hits += launch.prefix_hits.size();
    for (const FormatRun& run : launch.formats) (run.four ? dequantized : low_bit) += run.count;
  }
  void notify(const Command& command) override {
    const auto* drop = std::get_if<DropRequestState>(&command);
    preemptions += drop != nullptr && drop->reason == DropRequestState::Reason::kPreempted;
    const auto* transfer = std::get_if<StartTransfer>(&command);
    transfers += transfer != nullptr;
    gpu_.notify(command), cpu_.notify(command);
    if (exact_ != nullptr) exact_->notify(command);
  }

  Error error, format;
  bool finite = true;
  uint64_t requantisations = 0, prefix_hits = 0, low_bit = 0, dequantized = 0, preemptions = 0, transfers = 0;

 private:
  cuda::CudaEngine& gpu_;
  cpu::CpuEngine& cpu_;
  cpu::CpuEngine* const exact_;
};

CoreConfig config_of(const std::string& precision, uint64_t seed) {
  Prng prng(draw({seed, 31}));
  CoreConfig config;
  config.page_tokens = kPage;
  config.unit_tokens = prng.chance(1, 2) ? 8 : kPage;
  config.pages_gpu = static_cast<uint32_t>(precision == "triaxial" ? prng.range(24, 40) : prng.range(18, 24));
  config.requests_max = static_cast<uint32_t>(prng.range(2, 6));
  config.step_tokens_max = static_cast<uint32_t>(prng.range(24, 96));
  config.steps_in_flight_max = static_cast<uint32_t>(prng.range(1, 2));
  PolicySet& set = config.policies;
  set.precision = precision;
  set.precision_spec.residual_tokens = 64;
  if (precision == "triaxial") {
    set.identity = "session";
    config.pages_int2 = config.pages_gpu / 2;
    set.precision_spec.four_bit_tags = draw({seed, 7}) & kAllTags;
    set.precision_spec.ageing = seed % 2 == 0 ? Ageing::kRequantise : Ageing::kIgnore;
    if (seed % 4 < 2) {
      set.placement = "host";
      config.preemption = PreemptionKind::kSwap;
      config.pages_host = 60;
    }
  } else if (prng.chance(1, 2)) {
    set.placement = "host";
    config.pages_host = 20, config.offload_pages_target = config.pages_gpu / 2,
    config.offload_batch_pages = 4;
  }
  const auto problem = validate_core_config(config);
  if (problem) check_failed(problem->c_str(), __FILE__, __LINE__);
  return config;
}

std::unique_ptr<cpu::KvCache> cpu_cache(const CoreConfig& config, const LlmSpec& llm) {
  const cpu::KvMemory memory{config.page_tokens, config.pages_gpu, config.pages_host, true};
  const PrecisionTraits axis = precision_traits(config.policies.precision);
  const uint32_t exact = exact_tokens_max(axis, config.policies.precision_spec);
  if (axis.by_tag) return take(cpu::MixedPrecisionCache::make(memory, llm, {config.pages_int2, 32, 512}));
  return take(cpu::PackedCache::make(memory, llm, {axis.prompt_format, 32, exact, 512}));
}
cuda::OwnedCache gpu_cache(const CoreConfig& config, const LlmSpec& llm, bool fused) {
  const cuda::KvMemory memory{config.page_tokens, config.pages_gpu, config.pages_host, 128, true};
  const PrecisionTraits axis = precision_traits(config.policies.precision);
  const uint32_t exact = exact_tokens_max(axis, config.policies.precision_spec);
  if (axis.by_tag) return take(cuda::make_mixed_precision({config.pages_int2, 32, fused}, memory, &llm));
  return take(cuda::make_packed({axis.prompt_format, 32, exact, fused}, memory, &llm));
}

struct Totals {
  Error error, format;
  uint64_t requantisations = 0, prefix_hits = 0, low_bit = 0, dequantized = 0, preemptions = 0, transfers = 0;

  void add(const AllEngines& run) {
    error.differences += run.error.differences, error.sizes += run.error.sizes;
    format.differences += run.format.differences, format.sizes += run.format.sizes;
    requantisations += run.requantisations, prefix_hits += run.prefix_hits;
    low_bit += run.low_bit, dequantized += run.dequantized;
    preemptions += run.preemptions, transfers += run.transfers;
  }
};

// A whole run with a policy under pressure. `fused` false: all pages are unpacked before attention.
void check_run(const std::string& precision, uint64_t seed, bool fused, Totals* totals,
               ListTexts* issued = nullptr) {
  CAPTURE(precision);
  CAPTURE(seed);
  const LlmSpec llm = models()[seed % 3];
  const PreparedEngine p(llm);
  RunOptions options;
  options.check_invariants = true;
  options.engines = {config_of(precision, seed)};
  const CoreConfig& config = options.engines[0];
  const PolicyAxes axes = make_axes(config.policies);
  ScriptClient client({.seed = seed,
                       .sessions = 4,
                       .requests_per_session = 3,
                       .unit_tokens = config.unit_tokens,
                       .prompt_tokens_max = 150,
                       .output_tokens_max = 30,
                       .cancels_per_100 = seed % 3 == 0 ? 20u : 0u,
                       .roles = precision == "triaxial"});
  cpu::IdentityTokens tokens({.seed = seed, .unit_tokens = config.unit_tokens, .vocab = llm.vocab});
  cuda::CudaEngineConfig own;
  own.page_tokens = config.page_tokens, own.pages_gpu = config.pages_gpu, own.pages_host = config.pages_host;
  own.rows_max = 128, own.samples_max = config.requests_max, own.poison = true;
  if (issued != nullptr) {
    own.issued = [=](const LaunchStep&, uint32_t, const StepList& list) { issued->insert(list.text()); };
  }
  const auto gpu =
      take(cuda::CudaEngine::make(own, p.device.get(), &tokens, gpu_cache(config, p.llm, fused)));
  cpu::CpuEngine cpu({}, &p.weights, &tokens, cpu_cache(config, llm));
  cpu::CpuEngine exact({}, &p.weights, &tokens,
                       paged({config.page_tokens, config.pages_gpu, config.pages_host, true}, llm));
  AllEngines all(gpu.get(), &cpu, axes.precision.by_tag ? nullptr : &exact);
  cpu::CpuBackend backend({{config.steps_in_flight_max}}, &all, drawn_times(seed));
  Recorder recorder(options, {"packed", seed});
  const RunEnd end = run(options, recorder.watch(tokens.watch(&client)), &backend, {&recorder});
  CHECK(end.idle);
  CHECK(client.content());
  CHECK(all.finite);
  check_replays(recorder.finish(end), end.digest);
  totals->add(all);
}

}  // namespace

TEST_CASE(
    "X-2 cuda backend: packed formats under chunks, shared prefixes, preemption, swap and the host tier") {
  double coarsest = 0;  // the largest of all formats
  for (const std::string precision : {"fp8", "int4", "fp4", "kivi_int2", "triaxial"}) {
    Totals totals;
    for (uint64_t seed = 1; seed <= 8; ++seed) check_run(precision, seed, seed % 4 != 3, &totals);
    const bool by_tag = totals.format.sizes == 0;
    if (!by_tag) coarsest = std::max(coarsest, totals.format.relative());
    const double format = by_tag ? coarsest : totals.format.relative();
    MESSAGE(precision << ": relative error of logits " << totals.error.relative() << ", of the format "
                      << format << ", " << totals.preemptions << " preemptions, " << totals.transfers
                      << " transfers, " << totals.prefix_hits << " prefix hits, " << totals.requantisations
                      << " ageings, KV entries of 2 bits " << totals.low_bit << ", of 4 "
                      << totals.dequantized);
    CHECK(totals.error.relative() < bf16_tolerance(models()[0]) + 0.5 * format);
    CHECK(totals.prefix_hits > 0);
    CHECK(totals.preemptions > 0);
    CHECK(totals.transfers > 0);
    if (!by_tag) continue;
    CHECK(totals.low_bit > 0);
    CHECK(totals.dequantized > 0);
    CHECK(totals.requantisations > 0);
  }
}

TEST_CASE("cuda: steps over two packed formats start the operations of their lists") {
  ListTexts found, possible;
  Totals ignored;
  for (const uint64_t seed : {1, 3, 4, 6}) check_run("triaxial", seed, true, &ignored, &found);
  for (uint32_t bits = 1; bits < 64; ++bits) {
    const auto bit = [&](uint32_t i) { return (bits >> i & 1) != 0; };
    StepListSpec spec = packed_list({bit(0), bit(1), false}, bit(2), bit(3));
    spec.attention.requantises = bit(4), spec.samples = bit(5);
    possible.insert(list_step(spec).text());
  }
  check_lists(found, possible, "triaxial");
}
