// Sampling on the device equals its definition, token by token.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/base/prng.h"
#include "kernels/bench/decode_problem.cuh"
#include "kernels/dense/sample_tokens.h"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

using kernels::SampleSpec;

// Rows of all kinds: smooth, with few distinct logits (ties), with infinities and NaN, and with one outlier.
std::vector<float> rows_of(uint32_t rows, uint32_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> out(size_t{rows} * count);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float values[] = {0, -0.0f, 1, -1, -kInf, NAN, 2.5f, -30};
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t i = 0; i < count; ++i) {
      float& x = out[size_t{r} * count + i];
      x = r % 4 == 1 ? values[random() % 8] : r % 4 == 2 ? std::round(normal(random)) : normal(random);
    }
    if (r % 4 == 3) out[size_t{r} * count + random() % count] = r % 8 == 3 ? 40 : kInf;
  }
  return out;
}

// `rows` rows of `count` logits, sampled with every specification.
void check_tokens(uint32_t rows, uint32_t count) {
  uint64_t seed = count;
  CAPTURE(count);
  for (const SampleSpec& spec : {SampleSpec{1, 0, 0},
                                 {1.25f, 50, 0},
                                 {0.7f, 0, 3'865'470'566},
                                 {1, 1, 0},
                                 {1, 40, 4'080'218'931},
                                 {2, 0, 5}}) {
    CAPTURE(spec.top_k);
    CAPTURE(spec.top_p_q32);
    const std::vector<float> logits = rows_of(rows, count, ++seed);
    std::vector<uint64_t> draws;
    std::vector<uint32_t> want;
    for (uint32_t r = 0; r < rows; ++r) {
      draws.push_back(r == 0 ? 0 : r == 1 ? UINT64_MAX : draw({seed, r}));
      want.push_back(kernels::sample_ref(spec, logits.data() + size_t{r} * count, count, draws.back()));
    }
    const DeviceArray<float> logits_on(logits);
    const DeviceArray<uint64_t> draws_on(draws);
    const DeviceArray<uint32_t> out(std::vector<uint32_t>(rows, 0xdeadbeef));
    KVT_CUDA(sample_tokens({logits_on.get(), draws_on.get(), rows, count, spec, out.get()}, nullptr));
    CHECK(out.read() == want);
  }
}

// Small enough for sanitizers, which take minutes for a whole vocabulary.
TEST_CASE("sample_tokens, few: the tokens of sample_ref") {
  for (const uint32_t count : {1u, 2u, 31u, 1000u, 1025u, 1500u}) check_tokens(6, count);
}

TEST_CASE("sample_tokens: the tokens of sample_ref") {
  for (const uint32_t count : {1u, 2u, 31u, 1000u, 1025u}) check_tokens(40, count);
  for (const uint32_t count : {32'000u, 128'256u}) check_tokens(8, count);
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
