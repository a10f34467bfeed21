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

TEST_CASE("attention output: equals attention written out") {
  Prng prng(81);
  const Tensor k = random_tensor(&prng, 2, 30, 8), v = random_tensor(&prng, 2, 30, 8),
               q = random_tensor(&prng, 4, 3, 8);
  const std::vector<uint32_t> positions = last_positions(30, 3);
  const AttentionScores attention_scores{q.view(), positions, k.view(), {30, {}}, {}, false};
  RowSet all(30);
  std::iota(all.begin(), all.end(), 0u);
  std::vector<double> out(8), expected(8, 0.0);
  attention_output(attention_scores, v.view(), 3, 1, all, out);
  const std::vector<double> row = attend(q.at(3, 1), k, 1, 29);
  for (uint32_t p = 0; p < 30; ++p) {
    for (uint32_t c = 0; c < 8; ++c) expected[c] += row[p] * v.at(1, p)[c];
  }
  for (uint32_t c = 0; c < 8; ++c) CHECK(std::fabs(out[c] - expected[c]) < 1e-6);
}
