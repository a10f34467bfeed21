// The CUDA engine equals the CPU engine within bf16's rounding, for any pages, chunks, batches, reuse and
// tiers. All pages are poisoned when allocated, so that reads out of range are detected.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "tests/unit/cuda_engine/cuda_steps.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr RequestId kA{1}, kB{2}, kC{3};
constexpr uint64_t kWeightSeed = 7;

cuda::CudaEngineConfig config_of(uint32_t page_tokens, uint32_t pages = 200) {
  cuda::CudaEngineConfig config;
  config.page_tokens = page_tokens, config.pages_gpu = pages;
  return config;
}

struct PreparedEngine {
  PreparedEngine(const LlmSpec& llm, uint32_t count)
      : weights(ModelWeights::random(llm, kWeightSeed)), device(on_device(weights)) {
    ids = random_tokens(3, count, llm.vocab);
    tokens.give(kA, ids, count);
  }
  ModelWeights weights;
  std::unique_ptr<cuda::DeviceModel> device;
  std::vector<uint32_t> ids;
  GivenTokens tokens;
};

// Both engines, driven with the same steps.
struct Pair {
  Pair(const PreparedEngine& p, const GivenTokens& tokens, uint32_t page, uint64_t seed)
      : cpu({.page_tokens = page, .pages_gpu = 200, .poison = true}, &p.weights, &tokens, seed),
        gpu(config_of(page), *p.device, &tokens, seed) {}
  void begin(RequestId request) { cpu.begin(request), gpu.begin(request); }
  double run(const std::vector<Steps::Want>& wants, uint32_t repeat = 1) {
    std::vector<CudaSteps::Want> same;
    for (const Steps::Want& want : wants) same.push_back({want.request, want.tokens, want.samples});
    return relative_error(gpu.run(same, repeat), cpu.run(wants, repeat));
  }
  Steps cpu;
  CudaSteps gpu;
};

}  // namespace

TEST_CASE("G-3 cuda: chunks, decodes and both in one step give the logits of the CPU engine") {
  for (const LlmSpec& llm : cuda_models()) {
    const PreparedEngine p(llm, 90);
    GivenTokens tokens = p.tokens;
    tokens.give(kA, p.ids, 53);
    tokens.give(kB, random_tokens(4, 90, llm.vocab), 33);
    tokens.give(kC, random_tokens(5, 90, llm.vocab), 1);
    double worst = 0;
    for (const uint32_t page : {1u, 5u, 16u, 32u}) {
      Pair pair(p, tokens, page, 9);
      pair.begin(kA), pair.begin(kB), pair.begin(kC);
      for (const double error :
           {pair.run({{kA, 53}}), pair.run({{kA, 1}}, 3), pair.run({{kA, 1}, {kB, 20, false}, {kC, 1}}),
            pair.run({{kB, 13}, {kC, 1}}), pair.run({{kC, 1}, {kB, 1}, {kA, 1}}, 20)}) {
        CAPTURE(llm.family);
        CAPTURE(llm.head_dim);
        CAPTURE(page);
        CHECK(error < bf16_tolerance(llm));
        worst = std::max(worst, error);
      }
    }
    MESSAGE(llm.family << ", " << llm.layers << " layers, heads of " << llm.head_dim
                       << ": worst relative error of logits " << worst);
  }
}

TEST_CASE("cuda: a prompt in chunks, whole, or token by token gives the same logits within rounding") {
  for (const LlmSpec& llm : cuda_models()) {
    CAPTURE(llm.family);
    CAPTURE(llm.head_dim);
    const PreparedEngine p(llm, 50);
    const auto last = [&](const std::vector<uint32_t>& chunks, uint64_t seed) {
      GivenTokens tokens;
      tokens.give(kA, p.ids, 50);
      CudaSteps steps(config_of(16), *p.device, &tokens, seed);
      steps.begin(kA);
      std::vector<float> logits;
      uint32_t at = 0;
      for (const uint32_t chunk : chunks) logits = steps.run({{kA, chunk, (at += chunk) == 50}});
      return logits;
    };
    const std::vector<float> whole = last({50}, 0);
    CHECK(last({50}, 4) == whole);  // on other pages: to the bit
    CHECK(relative_error(last({16, 16, 18}, 1), whole) < bf16_tolerance(llm));
    CHECK(relative_error(last({1, 7, 42}, 2), whole) < bf16_tolerance(llm));
    CHECK(relative_error(last(std::vector<uint32_t>(50, 1), 3), whole) < bf16_tolerance(llm));
  }
}

TEST_CASE(
    "G-2 cuda: reused pages, also after a round trip to the host tier, equal computed ones to the bit") {
  for (const LlmSpec& llm : cuda_models()) {
    CAPTURE(llm.family);
    CAPTURE(llm.head_dim);
    const PreparedEngine p(llm, 64);
    GivenTokens tokens = p.tokens;
    tokens.give(kB, p.ids, 64);
    tokens.give(kC, p.ids, 64);
    for (const bool concurrent : {false, true}) {
      cuda::CudaEngineConfig config = config_of(16);
      config.pages_host = 20;
      config.concurrent_copies = concurrent;
      CudaSteps steps(config, *p.device, &tokens, 6);
      steps.begin(kA);
      steps.run({{kA, 48, false}});
      const std::vector<PageId> source = steps.pages(kA);
      REQUIRE(source.size() == 3);
      const std::vector<float> expected = steps.run({{kA, 16}});
      steps.begin(kB, source);
      CHECK(steps.run({{kB, 16}}) == expected);
      std::vector<PageId> host, target;
      for (uint32_t i = 0; i < 3; ++i)
        host.push_back(PageId{config.pages_gpu + 3 * i}), target.push_back(steps.take());
      steps.engine().notify(
          StartTransfer{{}, TransferId{1}, TransferKind::kOffload, Tier::kGpu, Tier::kHost, source, host});
      // The copies are still in progress.
      if (concurrent) CHECK(steps.engine().copy_time(TransferId{1}).ns > 0);
      steps.engine().notify(
          StartTransfer{{}, TransferId{2}, TransferKind::kLoad, Tier::kHost, Tier::kGpu, host, target});
      if (concurrent) CHECK(steps.engine().copy_time(TransferId{2}).ns > 0);
      steps.begin(kC, target);
      CHECK(steps.run({{kC, 16}}) == expected);
    }
  }
}

TEST_CASE("cuda: weights drawn on the GPU equal those drawn on the host") {
  for (const LlmSpec& llm : {cuda_models()[4], cuda_models()[6]}) {
    const PreparedEngine p(llm, 40);
    const ModelWeights outline = ModelWeights::random_outline(llm, kWeightSeed);
    const std::unique_ptr<cuda::DeviceModel> drawn = on_device(outline);
    CudaSteps a(config_of(16), *p.device, &p.tokens, 1), b(config_of(16), *drawn, &p.tokens, 1);
    a.begin(kA), b.begin(kA);
    CHECK(a.run({{kA, 40}}) == b.run({{kA, 40}}));
  }
}

TEST_CASE("cuda: checkpoints in fp32 and in several files are rounded to bf16 and computed") {
  for (const char* name : {"llama_biased", "qwen2_yarn", "qwen3_qk_norm", "mistral_sharded", "llama_tied"}) {
    CAPTURE(name);
    const std::string folder = std::string(KVTWIN_SOURCE_DIR "/tests/golden/hf/data/") + name;
    Result<ModelWeights> weights = load_model(folder);
    REQUIRE_MESSAGE(weights.has_value(), (weights ? std::string() : weights.error().text()));
    const LlmSpec& llm = weights->llm();
    if (llm.head_dim % 8 != 0) {
      CHECK(!cuda::DeviceModel::make(*weights).has_value());
      continue;
    }
    const std::unique_ptr<cuda::DeviceModel> device = on_device(*weights);
    GivenTokens tokens;
    tokens.give(kA, random_tokens(3, 30, llm.vocab), 30);
    Steps cpu({.page_tokens = 16, .pages_gpu = 9}, &*weights, &tokens, 1);
    CudaSteps gpu(config_of(16, 9), *device, &tokens, 1);
    cpu.begin(kA), gpu.begin(kA);
    // Two roundings more: the weights themselves.
    CHECK(relative_error(gpu.run({{kA, 30}}), cpu.run({{kA, 30}})) < 2 * bf16_tolerance(llm));
  }
}

TEST_CASE(
    "cuda: greedy decoding feeds back its samples, stops where it samples an end, and survives preemption") {
  const LlmSpec llm = cuda_models()[4];
  const PreparedEngine p(llm, 10);
  cuda::CudaEngineConfig config = config_of(16);
  config.decoding = cpu::Decoding::kGreedy;
  CudaSteps steps(config, *p.device, &p.tokens, 6);
  steps.begin(kA);
  steps.run({{kA, 10}});
  steps.run({{kA, 1}}, 19);
  const std::vector<uint32_t> sampled = steps.sampled(kA);
  REQUIRE(sampled.size() == 20);
  config.end_tokens = {sampled[7]};
  CudaSteps ending(config, *p.device, &p.tokens, 7);
  ending.begin(kA);
  ending.run({{kA, 10}});
  for (size_t i = 1; ending.values().eos.empty(); ++i) {
    REQUIRE(i < 20);
    ending.run({{kA, 1}});
  }
  CHECK(ending.values().eos == std::vector<RequestId>{kA});

  config.end_tokens.clear();
  CudaSteps preempted(config, *p.device, &p.tokens, 8);
  preempted.begin(kA);
  preempted.run({{kA, 10}});
  preempted.run({{kA, 1}}, 6);
  preempted.end(kA, DropRequestState::Reason::kPreempted);
  preempted.begin(kA);
  preempted.run({{kA, 17}});  // the prompt and seven outputs; it samples the eighth
  CHECK(preempted.sampled(kA).size() == 8);
  preempted.end(kA);
  CHECK(preempted.engine().samples_digest() != 0);
}

TEST_CASE("cuda: steps replayed as graphs equal steps launched without them, to the bit") {
  for (const LlmSpec& llm : cuda_models()) {
    CAPTURE(llm.family);
    CAPTURE(llm.head_dim);
    const PreparedEngine p(llm, 90);
    GivenTokens tokens = p.tokens;
    tokens.give(kA, p.ids, 40);
    tokens.give(kB, random_tokens(4, 90, llm.vocab), 33);
    // Shapes that return after others, page boundaries in between, and more shapes than graphs.
    const auto logits = [&](uint32_t graphs_max, uint64_t* replays) {
      cuda::CudaEngineConfig config = config_of(16);
      config.graphs_max = graphs_max;
      CudaSteps steps(config, *p.device, &tokens, 9);
      std::vector<std::vector<float>> out;
      steps.begin(kA), steps.begin(kB);
      out.push_back(steps.run({{kA, 40}}));
      for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 5; ++i) out.push_back(steps.run({{kA, 1}}));
        if (round == 0) out.push_back(steps.run({{kB, 33}}));
        for (int i = 0; i < 3; ++i) out.push_back(steps.run({{kA, 1}, {kB, 1}}));
        out.push_back(steps.run({{kA, 1}}, 6));
      }
      *replays = steps.engine().graph_replays();
      return out;
    };
    uint64_t none = 0, some = 0, all = 0;
    const auto expected = logits(0, &none);
    CHECK(logits(1, &some) == expected);
    CHECK(logits(8, &all) == expected);
    CHECK(none == 0);
    const bool takes = llm.head_dim == 64 || llm.head_dim == 128;  // steps of attention_rows are not replayed
    CHECK((some > 0) == takes);
    // Excludes the first three with two rows, and the first two with one row, which was warmed up.
    CHECK(all == (takes ? 3 * (5 + 3 + 6) - 5 : 0));
  }
}

TEST_CASE("cuda: operations are timed while an operation log is attached") {
  const LlmSpec llm = cuda_models()[4];
  const PreparedEngine p(llm, 40);
  cuda::OperationLog log(true);
  cuda::CudaEngineConfig config = config_of(16);
  config.log = &log;
  CudaSteps steps(config, *p.device, &p.tokens, 6);
  steps.begin(kA);
  steps.run({{kA, 39, false}});
  steps.run({{kA, 1}});
  const std::vector<cuda::OperationTime> chunk = log.take({}, StepId{0}), decode = log.take({}, StepId{1});
  CHECK(log.take({}, StepId{1}).empty());
  // Upload, embedding, plan; nine per layer; norm, logits, sample.
  CHECK(chunk.size() == 3 + 9 * llm.layers);
  CHECK(decode.size() == 3 + 9 * llm.layers + 3);
  for (size_t i = 0; i < decode.size(); ++i) {
    CHECK(decode[i].to >= decode[i].from);
    if (i > 0) CHECK(decode[i].from == decode[i - 1].to);
  }
  CHECK(log.csv().find("decode attention") != std::string::npos);
}

TEST_CASE(
    "cuda: a model that does not fit is reported with operation, shape and bytes, and leaves the GPU "
    "usable") {
  const LlmSpec llm = cuda_models()[4];
  const PreparedEngine p(llm, 40);
  cuda::CudaEngineConfig config = config_of(16, 400'000'000);
  config.rows_max = 16, config.samples_max = 4;
  const auto made = cuda::CudaEngine::make(config, p.device.get(), &p.tokens);
  REQUIRE(!made);
  const std::string text = made.error().text();
  CHECK_MESSAGE(text.find("cudaMalloc for KV pages [400000000 pages of 32768 bytes]") != std::string::npos,
                text);
  CHECK_MESSAGE(text.find("needs 13107200000000 bytes, the GPU has ") != std::string::npos, text);
  CHECK_MESSAGE(text.find("memory.gpu_pages") != std::string::npos, text);
  CudaSteps steps(config_of(16), *p.device, &p.tokens, 1);
  steps.begin(kA);
  CHECK(steps.run({{kA, 40}}).size() == llm.vocab);
}

int main(int argc, char** argv) {
  if (const Result<void> ok = cuda::check_gpu(); !ok) {
    std::printf("skipped: %s\n", ok.error().text().c_str());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
