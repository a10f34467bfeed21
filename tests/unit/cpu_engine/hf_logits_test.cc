// The CPU engine's logits compared with those of HF transformers (tests/golden/hf/README.md).

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "engine/cpu/cpu_engine.h"
#include "models/weights/weights.h"
#include "tests/support/source_dir.h"
#include "tests/unit/cpu_engine/dense_forward.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr double kTolerance = 1e-3;  // on every logit

struct Golden {
  std::vector<uint32_t> tokens;
  std::vector<float> logits;
};

Golden read_golden(const std::string& folder) {
  Result<Checkpoint> file = Checkpoint::open(folder + "/expected.safetensors");
  REQUIRE_MESSAGE(file, (file ? std::string() : file.error().text()));
  const TensorView *tokens = file->find("tokens"), *logits = file->find("logits");
  REQUIRE(tokens != nullptr);
  REQUIRE(logits != nullptr);
  REQUIRE(tokens->type == TensorType::kI32);
  Golden golden{std::vector<uint32_t>(tokens->elements()), read_floats(*logits)};
  std::memcpy(golden.tokens.data(), tokens->data.data(), tokens->data.size());
  return golden;
}

// Every token's logits, one decode step per token.
std::vector<float> engine_logits(const ModelWeights& weights, const std::vector<uint32_t>& tokens) {
  GivenTokens given;
  given.give(RequestId{1}, tokens, 1);
  cpu::CpuEngine engine({}, &weights, &given,
                        paged({.page_tokens = 4, .pages_gpu = 16, .poison = true}, weights.llm()));
  std::vector<float> out;
  DataOutcomes values;
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    const PlanEntry entry{RequestId{1}, i == 0 ? EntryKind::kChunk : EntryKind::kDecode, i == 0, true, 1, i};
    const PageAllocation allocation{0, 0, PageId{15 - i / 4}};
    const LaunchStep launch{.step = StepId{i},
                            .tokens = 1,
                            .tokens_padded = 1,
                            .entries = {&entry, 1},
                            .allocations = {&allocation, i % 4 == 0 ? 1u : 0u},
                            .prefix_hits = {}};
    engine.step(launch, 0, &values);
    out.insert(out.end(), engine.logits().begin(), engine.logits().end());
  }
  return out;
}

}  // namespace

TEST_CASE("logits agree with HF transformers for every family") {
  for (const std::string name : {"llama3_scaled", "llama_tied", "llama_biased", "qwen2_bias", "qwen3_qk_norm",
                                 "mistral_sharded", "qwen2_yarn"}) {
    CAPTURE(name);
    const std::string folder = source_dir() + "/tests/golden/hf/data/" + name;
    const Result<ModelWeights> weights = load_model(folder);
    REQUIRE_MESSAGE(weights, (weights ? std::string() : weights.error().text()));
    const Golden golden = read_golden(folder);
    REQUIRE(golden.logits.size() == golden.tokens.size() * weights->llm().vocab);
    const std::vector<float> paged = engine_logits(*weights, golden.tokens);
    const std::vector<double> dense = dense_logits(*weights, golden.tokens);
    REQUIRE(paged.size() == golden.logits.size());
    double worst = 0, worst_dense = 0, largest = 0;
    for (size_t i = 0; i < paged.size(); ++i) {
      const auto right = static_cast<double>(golden.logits[i]);
      worst = std::max(worst, std::abs(static_cast<double>(paged[i]) - right));
      worst_dense = std::max(worst_dense, std::abs(dense[i] - right));
      largest = std::max(largest, std::abs(right));
    }
    MESSAGE(name << ": differs by " << worst << " (double precision by " << worst_dense << "), logits up to "
                 << largest);
    CHECK(worst <= kTolerance);
    CHECK(worst_dense <= kTolerance);
  }
}
