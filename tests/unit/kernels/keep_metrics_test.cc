#include "kernels/scoring/keep_metrics.h"

#include <doctest/doctest.h>

#include <numeric>

#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

TEST_CASE("hit rate: a macro average of overlaps") {
  const RowSet reference{1, 4, 6, 9};
  CHECK(count_hits(reference, reference).hits == 4);
  CHECK(count_hits(RowSet{0, 4, 9, 12}, reference).hits == 2);
  CHECK(count_hits(RowSet{}, reference).hits == 0);
  CHECK(hit_rate(std::vector<HitCount>{{1, 2}, {4, 4}, {0, 0}}) == 0.75);
  CHECK(hit_rate({}) == 0.0);
  CHECK(random_hit_rate(30, 20) == 1.0);
}

TEST_CASE("output error: zero with every entry retained, complete with none retained") {
  Prng prng(81);
  const Tensor k = random_tensor(&prng, 2, 30, 8), v = random_tensor(&prng, 2, 30, 8),
               q = random_tensor(&prng, 4, 3, 8);
  const std::vector<uint32_t> positions = last_positions(30, 3);
  const AttentionScores attention_scores{q.view(), positions, k.view(), {30, {}}, {}, false};
  RowSet all(30);
  std::iota(all.begin(), all.end(), 0u);
  CHECK(output_error(attention_scores, v.view(), std::vector<RowSet>{all, all}).max_abs == 0.0);
  CHECK(output_error(attention_scores, v.view(), std::vector<RowSet>{{}, {}}).relative ==
        doctest::Approx(1.0));
  const OutputError half =
      output_error(attention_scores, v.view(), std::vector<RowSet>{all, RowSet{0, 5, 9}});
  CHECK(half.relative > 0.0);
  CHECK(half.max_abs > 0.0);
  // Compared with attention written out.
  std::vector<double> out(8), expected(8, 0.0);
  attention_output(attention_scores, v.view(), 3, 1, all, out);
  const std::vector<double> row = attend(q.at(3, 1), k, 1, 29);
  for (uint32_t p = 0; p < 30; ++p) {
    for (uint32_t c = 0; c < 8; ++c) expected[c] += row[p] * v.at(1, p)[c];
  }
  for (uint32_t c = 0; c < 8; ++c) CHECK(std::fabs(out[c] - expected[c]) < 1e-6);
}

TEST_CASE("spearman: the order alone counts, and ties share ranks") {
  const std::vector<double> a{1, 2, 3, 4, 5};
  CHECK(spearman(a, std::vector<double>{10, 20, 100, 1000, 1e9}) == doctest::Approx(1.0));
  CHECK(spearman(a, std::vector<double>{5, 4, 3, 2, 1}) == doctest::Approx(-1.0));
  CHECK(spearman(a, std::vector<double>{7, 7, 7, 7, 7}) == 0.0);
  // 1 - 6 * sum of squared rank differences / (n (n^2 - 1)): differences 1,1,0,1,1 -> 1 - 24/120.
  CHECK(spearman(a, std::vector<double>{2, 1, 3, 5, 4}) == doctest::Approx(0.8));
  // Ranks 1.5, 1.5, 3, 4 against 1..4: covariance 4.5 / sqrt(4.5 * 5).
  CHECK(spearman(std::vector<double>{1, 1, 2, 3}, std::vector<double>{1, 2, 3, 4}) ==
        doctest::Approx(4.5 / std::sqrt(4.5 * 5.0)));
}
