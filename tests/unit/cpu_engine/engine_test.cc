// The CPU engine's results equal the formulas in double precision. That they do not depend on pages, chunks,
// batches, reuse or tiers is a case of every engine (tests/conformance/engines).

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/cpu_engine/dense_forward.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"
#include "tests/unit/kernels/floats.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr RequestId kA{1};
constexpr uint64_t kWeightSeed = 7;

}  // namespace

TEST_CASE("G-3 forward: paged fp32 equals an unpaged forward in double precision") {
  for (const LlmSpec& llm : tiny_models()) {
    CAPTURE(llm.family);
    const ModelWeights weights = ModelWeights::random(llm, kWeightSeed);
    const std::vector<uint32_t> ids = random_tokens(3, 53, llm.vocab);
    const std::vector<double> dense = dense_logits(weights, ids);
    const std::vector<double> last(dense.end() - llm.vocab, dense.end());
    GivenTokens tokens;
    tokens.give(kA, ids, 53);
    for (const uint32_t page : {1u, 5u, 16u, 53u}) {
      CAPTURE(page);
      Steps steps({.page_tokens = page, .pages_gpu = 60, .poison = true}, &weights, &tokens, 9);
      steps.begin(kA);
      CHECK(distance(steps.run({{kA, 53}}), last) < 2e-5);
    }
  }
}

TEST_CASE("forward: dequantizing weights when they are needed changes no bit") {
  for (const LlmSpec& llm : tiny_models()) {
    const ModelWeights weights = ModelWeights::random(llm, 1);
    class Identity final : public cpu::LayerAttention {
     public:
      explicit Identity(const LlmSpec& m) : width_(m.query_heads * m.head_dim) {}
      void attend(uint32_t, float* q, float*, const float*, float* out) override {
        std::copy_n(q, 5 * width_, out);
      }

     private:
      const uint32_t width_;
    } identity(llm);
    const auto ids = random_tokens(3, 5, llm.vocab);
    const std::vector<uint32_t> sampling = {1, 4};
    cpu::Forward retained(&weights), widened(&weights, 0);
    std::vector<float> a, b;
    retained.run(ids, sampling, &identity, &a);
    widened.run(ids, sampling, &identity, &b);
    CHECK(a.size() == 2 * llm.vocab);
    CHECK(a == b);
  }
}
