// Scorers of keys and values only (Knorm, KeyDiff), and those built on them: CriticalKV; KVzip.

#include "kernels/scoring/score_keys.h"

#include <doctest/doctest.h>

#include "kernels/scoring/score_critical.h"
#include "kernels/scoring/score_kvzip.h"
#include "kernels/scoring/score_rotation.h"
#include "kernels/select/select.h"
#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

TEST_CASE("Knorm and KeyDiff: agree with their formulas in double") {
  Prng prng(31);
  for (const Shape& shape : edge_shapes()) {
    const Tensor k = random_tensor(&prng, shape.heads, shape.tokens, shape.dim, 2.0f);
    std::vector<float> knorm(size_t{shape.heads} * shape.tokens), keydiff = knorm;
    score_knorm(k.view(), packed_scores(knorm, shape.heads, shape.tokens));
    score_keydiff(k.view(), packed_scores(keydiff, shape.heads, shape.tokens));
    for (uint32_t h = 0; h < shape.heads; ++h) {
      std::vector<double> anchor(shape.dim, 0.0);
      for (uint32_t i = 0; i < shape.tokens; ++i) {
        const double length = std::sqrt(product(k.at(h, i), k.at(h, i), shape.dim));
        CHECK(off_by(knorm[h * shape.tokens + i], -length) < 1e-5);
        for (uint32_t c = 0; c < shape.dim; ++c) anchor[c] += k.at(h, i)[c] / length / shape.tokens;
      }
      double anchor_length = 0;
      for (const double x : anchor) anchor_length += x * x;
      for (uint32_t i = 0; i < shape.tokens; ++i) {
        double cosine = 0;
        for (uint32_t c = 0; c < shape.dim; ++c) cosine += k.at(h, i)[c] * anchor[c];
        cosine /= std::sqrt(product(k.at(h, i), k.at(h, i), shape.dim) * anchor_length);
        CHECK(std::fabs(keydiff[h * shape.tokens + i] + cosine) < 1e-5);
      }
    }
  }
}

TEST_CASE("Knorm: rotating keys changes no score; KeyDiff: the most different key is retained") {
  Prng prng(32);
  Tensor k = random_tensor(&prng, 1, 40, 8, 2.0f), turned = k;
  const std::vector<float> inv_freq{1.0f, 0.3f, 0.05f, 0.01f};
  for (uint32_t i = 0; i < 40; ++i)
    apply_planes(rotation_at({inv_freq, 1.0f}, i), k.at(0, i), turned.at(0, i));
  std::vector<float> a(40), b(40);
  score_knorm(k.view(), packed_scores(a, 1, 40));
  score_knorm(turned.view(), packed_scores(b, 1, 40));
  for (uint32_t i = 0; i < 40; ++i) CHECK(off_by(a[i], b[i]) < 1e-5);

  for (uint32_t i = 0; i < 40; ++i) {
    for (uint32_t c = 0; c < 8; ++c) k.at(0, i)[c] = 1.0f + 0.1f * uniform(&prng);
  }
  for (uint32_t c = 0; c < 8; ++c) k.at(0, 13)[c] *= -1.0f;
  score_keydiff(k.view(), packed_scores(a, 1, 40));
  CHECK(select_rows(a, {}, 1) == RowSet{13});
  std::fill_n(k.at(0, 5), 8, 0.0f);  // no NaN from a zero key
  score_keydiff(k.view(), packed_scores(a, 1, 40));
  CHECK(a[5] == 0.0f);
}

TEST_CASE("unrotate: removes the phase that a position adds") {
  Prng prng(33);
  const std::vector<float> inv_freq{1.0f, 0.3f, 0.05f, 0.01f};
  const RopePlanes scaled{inv_freq, 1.3f};
  const Tensor plain = random_tensor(&prng, 2, 5, 8);
  std::vector<float> expected(8);
  for (uint32_t h = 0; h < 2; ++h) {
    for (uint32_t i = 0; i < 5; ++i) {
      apply_planes(rotation_at(scaled, 40), plain.at(h, i), expected.data());
      unrotate(scaled, 40, expected.data(), expected.data());
      for (uint32_t c = 0; c < 8; ++c) CHECK(std::fabs(plain.at(h, i)[c] - expected[c]) < 1e-5);
    }
  }
}

TEST_CASE("CriticalKV: half of the budget by the base score, the rest by each entry's effect on the output") {
  Prng prng(34);
  for (const Shape& shape : edge_shapes()) {
    const uint32_t hidden = 24, query_heads = shape.heads * shape.group;
    const Tensor v = random_tensor(&prng, shape.heads, shape.tokens, shape.dim);
    const Tensor w = random_tensor(&prng, 1, hidden, query_heads * shape.dim);
    std::vector<float> scores(size_t{shape.heads} * shape.tokens);
    for (float& score : scores) score = 0.5f + 0.5f * uniform(&prng);
    const std::vector<float> base = scores;
    const uint32_t first = shape.tokens / 4;
    score_critical({hidden, query_heads, w.values}, v.view(), first,
                   packed_scores(scores, shape.heads, shape.tokens));
    for (uint32_t h = 0; h < shape.heads; ++h) {
      const std::span<const float> row = std::span(base).subspan(h * shape.tokens, shape.tokens);
      const RowSet stay = select_rows(row, {}, first);
      for (uint32_t i = 0; i < shape.tokens; ++i) {
        double norm = 0;
        for (uint32_t g = 0; g < shape.group; ++g) {
          for (uint32_t r = 0; r < hidden; ++r) {
            const float* weights = w.at(0, r) + (h * shape.group + g) * shape.dim;
            norm += std::fabs(product(weights, v.at(h, i), shape.dim)) / shape.group;
          }
        }
        const float score = scores[h * shape.tokens + i];
        if (std::binary_search(stay.begin(), stay.end(), i)) {
          CHECK(score == kMustStay);
        } else {
          CHECK(off_by(score, (row[i] + 1e-4) * norm) < 5e-5);
        }
      }
    }
  }
}

TEST_CASE("CriticalKV: entries that the base scorer forces do not count in the first half") {
  const Tensor v{1, 4, 2, {1, 0, 1, 0, 1, 0, 1, 0}}, w{1, 2, 2, {1, 0, 0, 1}};
  std::vector<float> scores{0.5f, 0.1f, 0.2f, kMustStay};
  score_critical({2, 1, w.values}, v.view(), 1, packed_scores(scores, 1, 4));
  CHECK(scores[0] == kMustStay);
  CHECK(scores[3] == kMustStay);
  CHECK(scores[1] == doctest::Approx(0.1001));
  CHECK(scores[2] == doctest::Approx(0.2001));
}

TEST_CASE(
    "KVzip: the largest probability over tokens and group, over sinks, chunk and repeated tokens only") {
  Prng prng(35);
  for (const Shape& shape : edge_shapes()) {
    const uint32_t sinks = std::min(3u, shape.tokens - 1), repeat = 6, chunk = shape.tokens - sinks;
    const Tensor k = random_tensor(&prng, shape.heads, shape.tokens, shape.dim, 2.0f);
    const Tensor q = random_tensor(&prng, shape.heads * shape.group, repeat, shape.dim, 2.0f);
    const Tensor own = random_tensor(&prng, shape.heads, repeat, shape.dim, 2.0f);
    std::vector<float> out(size_t{shape.heads} * chunk);
    score_kvzip_chunk({q.view(), {}, k.view(), {shape.tokens, {}}, own.view(), false}, sinks,
                      packed_scores(out, shape.heads, chunk));
    for (uint32_t h = 0; h < shape.heads; ++h) {
      std::vector<double> best(chunk, 0.0);
      for (uint32_t g = 0; g < shape.group; ++g) {
        for (uint32_t i = 0; i < repeat; ++i) {
          const float* query = q.at(h * shape.group + g, i);
          std::vector<double> logits;
          for (uint32_t p = 0; p < shape.tokens; ++p) logits.push_back(product(query, k.at(h, p), shape.dim));
          for (uint32_t p = 0; p <= i; ++p) logits.push_back(product(query, own.at(h, p), shape.dim));
          for (double& logit : logits) logit /= std::sqrt(double(shape.dim));
          const std::vector<double> row = softmax_of(logits);
          for (uint32_t p = 0; p < chunk; ++p) best[p] = std::max(best[p], row[sinks + p]);
        }
      }
      for (uint32_t p = 0; p < chunk; ++p) CHECK(off_by(out[h * chunk + p], best[p]) < 2e-5);
    }
  }
}
