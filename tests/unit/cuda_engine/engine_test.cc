// What the CUDA engine alone has: weights on the GPU, graphs, the operation log, memory that runs out. What
// it shares with the CPU engine are cases of every engine (tests/conformance/engines).

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "tests/support/source_dir.h"
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

}  // namespace

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
    const std::string folder = source_dir() + "/tests/golden/hf/data/" + name;
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

TEST_CASE("cuda: the graph of a captured size replays steps of every number of requests up to it") {
  for (const LlmSpec& llm : cuda_models()) {
    CAPTURE(llm.family);
    CAPTURE(llm.head_dim);
    const bool takes = llm.head_dim == 64 || llm.head_dim == 128;  // steps of attention_rows are not replayed
    const PreparedEngine p(llm, 90);
    GivenTokens tokens = p.tokens;
    tokens.give(kA, p.ids, 40);
    tokens.give(kB, random_tokens(4, 90, llm.vocab), 33);
    tokens.give(kC, p.ids, 40);
    uint64_t replays = 0;
    // Steps of one and of two rows, padded to 4 and to 8 rows or not padded.
    const auto logits = [&](uint32_t graphs_max, bool padded) {
      cuda::CudaEngineConfig config = config_of(16);
      config.graphs_max = graphs_max, config.samples_max = 5, config.row_sizes = {4, 8};
      CudaSteps steps(config, *p.device, &tokens, 9);
      std::vector<std::vector<float>> out;
      steps.begin(kA), steps.begin(kB);
      out.push_back(steps.run({{kA, 40}}));
      out.push_back(steps.run({{kB, 33}}));
      for (const uint32_t size : {4u, 8u}) {
        if (padded) steps.pad_to(size);
        out.push_back(steps.run({{kA, 1}, {kB, 1}}));
        out.push_back(steps.run({{kB, 1}}));
        out.push_back(steps.run({{kA, 1}, {kB, 1}}, 3));
        steps.begin(kC);  // the first token of a prompt is a row like a decode's, but gives no token
        out.push_back(steps.run({{kC, 1, false}, {kA, 1}}));
        steps.end(kC);
      }
      replays = steps.engine().graph_replays();
      return out;
    };
    const auto expected = logits(0, true);
    CHECK(replays == 0);
    CHECK(logits(1, true) == expected);
    CHECK(replays == (takes ? 2 * 6 : 0));  // from the first step on
    const auto plain = logits(0, false);
    for (size_t i = 0; i < plain.size(); ++i)
      CHECK(relative_error(expected[i], plain[i]) < bf16_tolerance(llm));
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

std::string kvtwin::testing::source_dir() { return KVTWIN_SOURCE_DIR; }

int main(int argc, char** argv) {
  if (const Result<void> ok = cuda::check_gpu(); !ok) {
    std::printf("skipped: %s\n", ok.error().text().c_str());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
