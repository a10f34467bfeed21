// Sampling compared with probabilities in double precision: the kept tokens, the frequencies, and the edges.

#include "kernels/dense/sample.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "engine/base/prng.h"
#include "kernels/dense/argmax.h"

using namespace kvtwin;
using kernels::SampleSpec;

namespace {

std::vector<float> random_logits(uint64_t seed, uint32_t count) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

// The probabilities of the kept tokens, from the definition in double.
std::map<uint32_t, double> expected(const SampleSpec& spec, const std::vector<float>& logits) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  if (spec.top_k > 0) order.resize(std::min<size_t>(order.size(), spec.top_k));
  const auto weight = [&](uint32_t i) {
    return std::exp((double{logits[i]} - double{logits[order[0]]}) * double{spec.inverse_temperature});
  };
  double total = 0, sum = 0;
  for (const uint32_t i : order) total += weight(i);
  const double p = spec.top_p_q32 == 0 ? 1 : spec.top_p_q32 / 4294967296.0;
  std::map<uint32_t, double> out;
  for (const uint32_t i : order) {
    if (sum >= p * total) break;
    sum += out[i] = weight(i);
  }
  for (auto& [token, x] : out) x /= sum;
  return out;
}

}  // namespace

TEST_CASE("sampling keeps and selects tokens according to their probabilities") {
  constexpr uint32_t kDraws = 40'000;
  for (const SampleSpec& spec :
       {SampleSpec{1, 0, 0}, {0.5f, 0, 0}, {1, 5, 0}, {2, 0, 3'000'000'000}, {1, 12, 3'865'470'566}}) {
    const std::vector<float> logits = random_logits(7 + spec.top_k, 40);
    const std::map<uint32_t, double> want = expected(spec, logits);
    std::map<uint32_t, uint32_t> seen;
    for (uint32_t i = 0; i < kDraws; ++i) ++seen[kernels::sample_ref(spec, logits.data(), 40, draw({3, i}))];
    for (const auto& [token, times] : seen) {
      CAPTURE(token);
      CHECK(want.count(token) == 1);
    }
    for (const auto& [token, p] : want) {
      CAPTURE(token);
      const double sigma = std::sqrt(p * (1 - p) / kDraws);
      CHECK(std::abs(static_cast<double>(seen[token]) / kDraws - p) < 5 * sigma + 1e-6);
    }
  }
}

TEST_CASE("sampling: ends of draws, ties, one token, no likely token, low temperature and small p") {
  const std::vector<float> ties = {1, 3, 3, 3, 2};
  CHECK(kernels::sample_ref({1, 2, 0}, ties.data(), 5, 0) == 1);
  CHECK(kernels::sample_ref({1, 2, 0}, ties.data(), 5, UINT64_MAX) == 2);  // the third tie is not kept
  CHECK(kernels::sample_ref({1, 0, 1}, ties.data(), 5, UINT64_MAX) == 1);  // at least one is kept
  CHECK(kernels::sample_ref({1, 0, 0}, ties.data(), 1, UINT64_MAX) == 0);
  CHECK(kernels::sample_ref({1, 0, 0}, ties.data(), 5, UINT64_MAX) == 4);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const std::vector<float> odd = {nan, -inf, 2, nan, -inf};
  for (uint64_t i = 0; i < 50; ++i) CHECK(kernels::sample_ref({1, 0, 0}, odd.data(), 5, draw({i})) == 2);
  const std::vector<float> none = {nan, -inf, -inf};
  CHECK(kernels::sample_ref({1, 2, 77}, none.data(), 3, draw({1})) == kernels::argmax_ref(none.data(), 3));
  const std::vector<float> large = {0, inf, 5};
  CHECK(kernels::sample_ref({1, 0, 0}, large.data(), 3, draw({1})) == 1);
  const std::vector<float> logits = random_logits(9, 1000);
  for (uint64_t i = 0; i < 50; ++i)
    CHECK(kernels::sample_ref({1e4f, 0, 0}, logits.data(), 1000, draw({i})) ==
          kernels::argmax_ref(logits.data(), 1000));
}
