// R-KV: attention less redundancy.

#include <doctest/doctest.h>

#include "kernels/scoring/score.h"
#include "kernels/select/select.h"
#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

// The definition in double, for one KV head and the rows before the window.
std::vector<double> defined(const ScoreSpec& spec, const Tensor& q, const Tensor& k, uint32_t head,
                            uint32_t before) {
  const uint32_t group = q.heads / k.heads, rows = k.rows;
  std::vector<double> attention(before, 0.0), pooled(before), sums(rows, 0.0), out(before);
  for (uint32_t i = 0; i < q.rows; ++i) {
    std::vector<double> weight(before);
    double whole = 0;
    for (uint32_t p = 0; p < before; ++p) {
      double logit = -1e300;
      for (uint32_t g = 0; g < group; ++g)
        logit = std::max(logit, product(q.at(head * group + g, i), k.at(head, p), k.dim));
      whole += weight[p] = std::exp(logit / std::sqrt(static_cast<double>(k.dim)));
    }
    for (uint32_t p = 0; p < before; ++p) attention[p] += weight[p] / whole / q.rows;
  }
  const uint32_t reach = spec.window.kernel / 2;
  for (uint32_t p = 0; p < before; ++p) {
    for (uint32_t n = p < reach ? 0 : p - reach; n <= std::min(before - 1, p + reach); ++n)
      pooled[p] = std::max(pooled[p], attention[n]);
  }
  for (uint32_t i = 0; i < rows; ++i) {
    std::vector<double> cosine(rows, 0.0);
    uint32_t newest = rows;
    for (uint32_t j = 0; j < rows; ++j) {
      if (j == i) continue;
      cosine[j] = product(k.at(head, i), k.at(head, j), k.dim) /
                  std::sqrt(product(k.at(head, i), k.at(head, i), k.dim) *
                            product(k.at(head, j), k.at(head, j), k.dim));
      if (cosine[j] > spec.own[1]) newest = j;
    }
    if (newest < rows) cosine[newest] = 0;
    for (uint32_t j = 0; j < rows; ++j) sums[j] += cosine[j] / rows;
  }
  double whole = 0;
  for (const double sum : sums) whole += std::exp(sum);
  for (uint32_t p = 0; p < before; ++p)
    out[p] = spec.own[0] * pooled[p] - (1 - spec.own[0]) * std::exp(sums[p]) / whole;
  return out;
}

}  // namespace

TEST_CASE("R-KV: agrees with its formula in double, and the window must stay") {
  Prng prng(71);
  for (const uint32_t group : {1u, 4u}) {
    const uint32_t heads = 2, rows = 60, dim = 16, window = 8;
    const Tensor k = random_tensor(&prng, heads, rows, dim, 2.0f);
    const Tensor q = random_tensor(&prng, heads * group, window, dim, 2.0f);
    std::vector<uint32_t> positions;
    for (uint32_t i = 0; i < window; ++i) positions.push_back(rows - window + i);
    const ScoreSpec spec = score_spec("r_kv");
    CHECK(spec.own[0] == 0.1f);
    std::vector<float> scores(heads * rows);
    ScoreInputs in;
    in.k = k.view(), in.q = q.view(), in.q_positions = positions, in.positions = {rows, {}};
    score_entries(spec, in, packed_scores(scores, heads, rows));
    for (uint32_t h = 0; h < heads; ++h) {
      const std::vector<double> expected = defined(spec, q, k, h, rows - window);
      for (uint32_t p = 0; p < rows - window; ++p)
        CHECK(std::fabs(scores[h * rows + p] - expected[p]) < 1e-6);
      for (uint32_t p = rows - window; p < rows; ++p) CHECK(scores[h * rows + p] == kMustStay);
    }
  }
}

TEST_CASE("R-KV: of entries with the same key the newest is the least redundant") {
  Prng prng(72);
  Tensor k = random_tensor(&prng, 1, 40, 8, 1.0f);
  for (const uint32_t copy : {9u, 17u, 26u}) std::copy_n(k.at(0, 3), 8, k.at(0, copy));
  const Tensor q = random_tensor(&prng, 1, 4, 8, 0.0f);  // all entries draw the same attention
  const std::vector<uint32_t> positions{36, 37, 38, 39};
  ScoreInputs in;
  in.k = k.view(), in.q = q.view(), in.q_positions = positions, in.positions = {40, {}};
  std::vector<float> scores(40);
  ScoreSpec spec = score_spec("r_kv");
  spec.own[1] = 0.999f;  // the copies alone
  score_entries(spec, in, packed_scores(scores, 1, 40));
  CHECK(scores[26] > scores[17]);
  CHECK(scores[17] > scores[3]);  // what copy 26 is most similar to, apart from itself
  CHECK(scores[9] == doctest::Approx(scores[3]));
}
