#include "kernels/scoring/score_intent.h"

#include <doctest/doctest.h>

#include <numeric>

#include "kernels/scoring/score_intent_residual.h"
#include "kernels/select/select.h"
#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

std::vector<uint32_t> ranking(const std::vector<float>& scores) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return order_key(scores[a], a) > order_key(scores[b], b); });
  return order;
}

std::vector<float> unit_memory(Prng* prng, uint32_t query_heads, uint32_t dim) {
  const Tensor q = random_tensor(prng, query_heads, 3, dim);
  std::vector<float> mean(size_t{query_heads} * dim), memory = mean;
  intent_query(q.view(), mean);
  std::fill(memory.begin(), memory.end(), 0.0f);
  intent_remember({}, dim, mean, memory);
  return memory;
}

// W x + b in double.
std::vector<double> affine(const std::vector<float>& w, const std::vector<float>& b,
                           const std::vector<double>& x) {
  std::vector<double> out(b.begin(), b.end());
  for (size_t r = 0; r < out.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) out[r] += double{w[r * x.size() + c]} * x[c];
  }
  return out;
}

std::vector<double> slice(const std::vector<double>& x, size_t first, size_t count) {
  const auto at = x.begin() + static_cast<ptrdiff_t>(first);
  return {at, at + static_cast<ptrdiff_t>(count)};
}

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// f_p from docs/design/methods/intentkv.md#scorer, equation by equation.
double correction(const IntentResidual& head, const float* kbar, const std::vector<float>& mbar,
                  const Tensor& span) {
  const size_t dim = head.dim, width = dim / head.heads;
  std::vector<double> x;
  for (size_t c = 0; c < dim; ++c) x.push_back(kbar[c]);
  for (size_t c = 0; c < dim; ++c) x.push_back(mbar[c]);
  for (size_t c = 0; c < dim; ++c) x.push_back(double{kbar[c]} * mbar[c]);
  std::vector<double> joined(dim, 0.0), context(dim, 0.0);
  if (head.cross_attention && span.rows > 0) {
    const std::vector<double> query = affine(head.wq, head.bq, x);
    for (size_t a = 0; a < head.heads; ++a) {
      std::vector<double> logits;
      for (uint32_t i = 0; i < span.rows; ++i) {
        const std::vector<double> key = affine(head.wk, head.bk, {span.at(0, i), span.at(0, i) + dim});
        logits.push_back(inner(slice(query, a * width, width), slice(key, a * width, width)) /
                         std::sqrt(double(width)));
      }
      const std::vector<double> weights = softmax_of(logits);
      for (uint32_t i = 0; i < span.rows; ++i) {
        const std::vector<double> value = affine(head.wv, head.bv, {span.at(0, i), span.at(0, i) + dim});
        for (size_t c = 0; c < width; ++c) joined[a * width + c] += weights[i] * value[a * width + c];
      }
    }
    context = affine(head.wo, head.bo, joined);
  }
  x.insert(x.end(), context.begin(), context.end());
  std::vector<double> hidden = affine(head.w1, head.b1, x);
  double out = head.b2;
  for (size_t n = 0; n < hidden.size(); ++n) {
    out += head.w2[n] * hidden[n] * 0.5 * std::erfc(-hidden[n] / std::sqrt(2.0));
  }
  return out;
}

}  // namespace

TEST_CASE("IntentKV: the memory decays and has unit length, with unit and with raw queries") {
  const uint32_t heads = 4, dim = 8;
  for (const QueryNorm norm : {QueryNorm::kUnit, QueryNorm::kRaw}) {
    Prng prng(61);
    IntentSpec spec;
    spec.query_norm = norm;
    std::vector<float> memory(heads * dim, 0.0f), mean(heads * dim);
    std::vector<double> expected(heads * dim, 0.0);
    for (int turn = 0; turn < 6; ++turn) {
      const Tensor q = random_tensor(&prng, heads, 5, dim, 10.0f);
      intent_query(q.view(), mean);
      intent_remember(spec, dim, mean, memory);
      for (uint32_t j = 0; j < heads; ++j) {
        double squares = 0, length = 0;
        std::vector<double> query(dim, 0.0);
        for (uint32_t c = 0; c < dim; ++c) {
          for (uint32_t i = 0; i < 5; ++i) query[c] += q.at(j, i)[c] / 5.0;
          length += query[c] * query[c];
        }
        for (uint32_t c = 0; c < dim; ++c) {
          double& m = expected[j * dim + c];
          m = double{0.9f} * m + query[c] / (norm == QueryNorm::kUnit ? std::sqrt(length) : 1.0);
          squares += m * m;
        }
        for (uint32_t c = 0; c < dim; ++c) {
          expected[j * dim + c] /= std::sqrt(squares);
          CHECK(std::fabs(memory[j * dim + c] - expected[j * dim + c]) < 1e-5);
        }
        CHECK(norm2(&memory[j * dim], dim) == doctest::Approx(1.0).epsilon(1e-6));
      }
    }
    // Mode `query` uses this turn only.
    std::vector<float> fresh(heads * dim), first(heads * dim, 0.0f);
    intent_forget(dim, mean, fresh);
    intent_remember(spec, dim, mean, first);
    for (size_t i = 0; i < fresh.size(); ++i) CHECK(fresh[i] == doctest::Approx(first[i]).epsilon(1e-6));
    // Without any query the division by zero is avoided.
    const std::vector<float> zeros(heads * dim, 0.0f);
    std::vector<float> empty = zeros;
    intent_remember(spec, dim, zeros, empty);
    CHECK(empty == zeros);
  }
}

TEST_CASE("IntentKV: a long query leaves nothing of a raw memory, and a unit memory remembers") {
  const uint32_t dim = 2;
  const std::vector<float> before = {0, 1}, query = {10, 0};
  for (const auto& [norm, left] : {std::pair{QueryNorm::kUnit, 0.669}, {QueryNorm::kRaw, 0.0896}}) {
    IntentSpec spec;
    spec.query_norm = norm;
    std::vector<float> memory = before;
    intent_remember(spec, dim, query, memory);
    CHECK(memory[1] == doctest::Approx(left).epsilon(0.002));  // 0.9 / sqrt(0.81 + 1), and + 100
  }
}

TEST_CASE("IntentKV: of several turns the best score counts, times gamma for each turn since") {
  std::vector<float> best(4, 0.0f);
  const std::vector<float> old = {0.5f, 0.1f, 0.0f, 0.2f}, now = {0.1f, 0.1f, 0.3f, NAN};
  intent_best_of_turns(intent_turn_factor(0.5f, 1), old, best);
  intent_best_of_turns(intent_turn_factor(0.5f, 0), now, best);
  CHECK(best[0] == 0.25f);
  CHECK(best[1] == 0.1f);
  CHECK(best[2] == 0.3f);
  CHECK(std::isnan(best[3]));
  CHECK(intent_turn_factor(1.0f, 63) == 1.0f);
  CHECK(intent_turn_factor(0.0f, 0) == 1.0f);
}

TEST_CASE("IntentKV: the rule is the mean over layers and heads of a softmax over the candidates") {
  Prng prng(62);
  for (const Shape& shape : edge_shapes()) {
    const uint32_t layers = 3, query_heads = shape.heads * shape.group;
    std::vector<float> rule(shape.tokens, 0.0f);
    std::vector<double> expected(shape.tokens, 0.0);
    IntentSpec spec;
    spec.temperature = 0.25f;
    for (uint32_t l = 0; l < layers; ++l) {
      const Tensor k = random_tensor(&prng, shape.heads, shape.tokens, shape.dim, 3.0f);
      const std::vector<float> memory = unit_memory(&prng, query_heads, shape.dim);
      intent_add_layer(spec, layers, memory, query_heads, k.view(), rule);
      for (uint32_t j = 0; j < query_heads; ++j) {
        std::vector<double> logits;
        for (uint32_t p = 0; p < shape.tokens; ++p) {
          logits.push_back(product(&memory[j * shape.dim], k.at(j / shape.group, p), shape.dim) /
                           std::sqrt(double(shape.dim)) / 0.25);
        }
        const std::vector<double> row = softmax_of(logits);
        for (uint32_t p = 0; p < shape.tokens; ++p) expected[p] += row[p] / (layers * query_heads);
      }
    }
    for (uint32_t p = 0; p < shape.tokens; ++p) CHECK(off_by(rule[p], expected[p]) < 2e-5);
    CHECK(std::accumulate(rule.begin(), rule.end(), 0.0) == doctest::Approx(1.0).epsilon(1e-5));
  }
}

TEST_CASE(
    "IntentKV: within one head the ranking does not depend on temperature; over heads the average does") {
  Prng prng(63);
  const uint32_t dim = 16, candidates = 200;
  const auto ranks = [&](uint32_t heads, const Tensor& k, const std::vector<float>& memory,
                         float temperature) {
    IntentSpec spec;
    spec.temperature = temperature;
    std::vector<float> rule(candidates, 0.0f);
    intent_add_layer(spec, 1, memory, heads, k.view(), rule);
    return ranking(rule);
  };
  const Tensor one = random_tensor(&prng, 1, candidates, dim, 3.0f);
  const std::vector<float> single = unit_memory(&prng, 1, dim);
  CHECK(ranks(1, one, single, 1.0f) == ranks(1, one, single, 0.2f));
  const Tensor many = random_tensor(&prng, 4, candidates, dim, 3.0f);
  const std::vector<float> memory = unit_memory(&prng, 4, dim);
  CHECK(ranks(4, many, memory, 1.0f) != ranks(4, many, memory, 0.05f));
}

TEST_CASE("IntentKV: averaging un-rotated queries retains what averaging rotated ones cancels") {
  const std::vector<float> inv_freq{1.0f, 0.01f};
  const RopePlanes planes{inv_freq, 1.0f};
  const Tensor plain{1, 1, 4, {1, 1, 0, 0}};
  Tensor q{1, 64, 4, std::vector<float>(64 * 4)};
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < 64; ++i) {
    positions.push_back(i);
    apply_planes(rotation_at(planes, i), plain.at(0, 0), q.at(0, i));
  }
  std::vector<float> rotated(4), unrotated(4), expected(4);
  intent_query(q.view(), rotated);
  intent_query_pre_rope(planes, q.view(), positions, 64, unrotated);
  apply_planes(rotation_at(planes, 64), plain.at(0, 0), expected.data());
  for (uint32_t c = 0; c < 4; ++c) CHECK(std::fabs(unrotated[c] - expected[c]) < 1e-5);
  CHECK(std::hypot(rotated[0], rotated[2]) < 0.1);  // the fast plane averages out
  CHECK(std::hypot(unrotated[0], unrotated[2]) == doctest::Approx(1.0));
}

TEST_CASE("IntentKV: the residual has 230,402 parameters at d = 128, and starts as the rule") {
  const IntentResidual head = make_intent_residual(128, 1);
  CHECK(head.wq.size() + head.bq.size() == 49280);
  CHECK(head.wk.size() + head.bk.size() == 16512);
  CHECK(head.w1.size() + head.b1.size() == 131328);
  CHECK(head.w2.size() + 1 == 257);
  CHECK(head.wv.size() + head.bv.size() + head.wo.size() + head.bo.size() == 2 * 16512);

  Prng prng(64);
  const Tensor kbar = random_tensor(&prng, 1, 30, 128), span = random_tensor(&prng, 1, 4, 128);
  const Tensor mbar = random_tensor(&prng, 1, 1, 128);
  std::vector<float> f(30), rule(30);
  intent_corrections(head, kbar.values, mbar.values, span.values, f);
  CHECK(std::all_of(f.begin(), f.end(), [](float x) { return x == 0.0f; }));
  for (float& score : rule) score = 0.1f + 0.05f * uniform(&prng);
  for (const RuleNorm norm : {RuleNorm::kNone, RuleNorm::kTimesCandidates, RuleNorm::kZScore}) {
    std::vector<float> scores = rule;
    intent_normalise(norm, scores);
    intent_correct(head, f, scores);
    CHECK(ranking(scores) == ranking(rule));
  }
}

TEST_CASE("IntentKV: a trained residual agrees with its equations, with and without cross-attention") {
  Prng prng(65);
  IntentResidual head = make_intent_residual(16, 2);
  for (float& weight : head.w2) weight = uniform(&prng);
  head.b2 = 0.3f;
  const Tensor kbar = random_tensor(&prng, 1, 12, 16, 2.0f), mbar = random_tensor(&prng, 1, 1, 16);
  for (const uint32_t rows : {5u, 1u, 0u}) {
    const Tensor span = random_tensor(&prng, 1, rows, 16, 2.0f);
    for (const bool cross : {true, false}) {
      head.cross_attention = cross;
      std::vector<float> f(12);
      intent_corrections(head, kbar.values, mbar.values, span.values, f);
      for (uint32_t p = 0; p < 12; ++p) {
        CHECK(f[p] == doctest::Approx(correction(head, kbar.at(0, p), mbar.values, span)).epsilon(1e-4));
      }
    }
  }
  std::vector<float> scores{1, 2}, f{10, -10};
  head.gain = 5.0f;  // clipped to 1
  intent_correct(head, f, scores);
  CHECK(scores == std::vector<float>{11, -8});
  head.gain = -1.0f;  // clipped to 0
  intent_correct(head, f, scores);
  CHECK(scores == std::vector<float>{11, -8});
}

TEST_CASE("IntentKV: the mean key and memory give every query head the same weight") {
  Prng prng(66);
  const uint32_t layers = 2, heads = 2, group = 3, dim = 4, rows = 5;
  std::vector<float> keys(rows * dim, 0.0f), memories(dim, 0.0f);
  std::vector<double> expected(rows * dim, 0.0), memory_mean(dim, 0.0);
  for (uint32_t l = 0; l < layers; ++l) {
    const Tensor k = random_tensor(&prng, heads, rows, dim), m = random_tensor(&prng, 1, heads * group, dim);
    intent_add_keys(layers, k.view(), keys);
    intent_add_memory(layers, heads * group, m.values, memories);
    for (uint32_t j = 0; j < heads * group; ++j) {
      for (uint32_t c = 0; c < dim; ++c) {
        for (uint32_t p = 0; p < rows; ++p) {
          expected[p * dim + c] += k.at(j / group, p)[c] / double(layers * heads * group);
        }
        memory_mean[c] += m.at(0, j)[c] / double(layers * heads * group);
      }
    }
  }
  for (size_t i = 0; i < keys.size(); ++i) CHECK(keys[i] == doctest::Approx(expected[i]).epsilon(1e-4));
  for (size_t c = 0; c < dim; ++c) CHECK(memories[c] == doctest::Approx(memory_mean[c]).epsilon(1e-4));
}

TEST_CASE("IntentKV: the three scales of the rule") {
  std::vector<float> rule{1, 2, 3, 6};
  intent_normalise(RuleNorm::kTimesCandidates, rule);
  CHECK(rule == std::vector<float>{4, 8, 12, 24});
  intent_normalise(RuleNorm::kZScore, rule);
  CHECK(std::accumulate(rule.begin(), rule.end(), 0.0) == doctest::Approx(0.0));
  double squares = 0;
  for (const float x : rule) squares += x * x;
  CHECK(squares / 4 == doctest::Approx(1.0));
  std::vector<float> flat(3, 5.0f);
  intent_normalise(RuleNorm::kZScore, flat);
  CHECK(flat == std::vector<float>{0, 0, 0});
}
