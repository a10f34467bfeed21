// The captures of calibrations: a whole context, and the scores that scorers give it.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/prng.h"
#include "engine/cpu/captured_scores.h"
#include "kernels/scoring/keep_metrics.h"
#include "kernels/select/select.h"
#include "tests/unit/cpu_engine/dense_forward.h"
#include "tests/unit/cpu_engine/tiny_models.h"

using namespace kvtwin;
using namespace kvtwin::cpu;
using kvtwin::testing::DenseRows;

namespace {

std::vector<uint32_t> some_tokens(uint32_t count, uint64_t seed) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(static_cast<uint32_t>(draw({seed, i}) % 97));
  return out;
}

double worst(const kernels::HeadsView& view, const std::vector<std::vector<double>>& rows) {
  double out = 0;
  for (uint32_t h = 0; h < view.heads; ++h) {
    for (uint32_t i = 0; i < view.rows; ++i) {
      for (uint32_t c = 0; c < view.dim; ++c)
        out = std::max(out, std::abs(double{view.row(h, i)[c]} - rows[i][h * view.dim + c]));
    }
  }
  return out;
}

// Probabilities of token `row` of query head j over the keys of tokens [0, row], in double.
std::vector<double> attention_row(const LlmSpec& m, const DenseRows& rows, uint32_t layer, uint32_t j,
                                  uint32_t row) {
  const uint32_t d = m.head_dim, h = j / (m.query_heads / m.kv_heads);
  std::vector<double> p(row + 1);
  double sum = 0;
  for (uint32_t t = 0; t <= row; ++t) {
    double dot = 0;
    for (uint32_t c = 0; c < d; ++c) dot += rows.q[layer][row][j * d + c] * rows.k[layer][t][h * d + c];
    sum += p[t] = std::exp(dot / std::sqrt(double(d)));
  }
  for (double& x : p) x /= sum;
  return p;
}

// The attention of tokens [first, end) to the context's KV entries, averaged over these tokens and the query
// heads of head h.
std::vector<double> mean_attention_of(const LlmSpec& m, const DenseRows& rows, uint32_t layer, uint32_t h,
                                      uint32_t first, uint32_t end, uint32_t tokens) {
  const uint32_t group = m.query_heads / m.kv_heads;
  std::vector<double> out(tokens);
  for (uint32_t j = h * group; j < (h + 1) * group; ++j) {
    for (uint32_t row = first; row < end; ++row) {
      const std::vector<double> p = attention_row(m, rows, layer, j, row);
      for (uint32_t t = 0; t < std::min<uint32_t>(tokens, row + 1); ++t)
        out[t] += p[t] / group / (end - first);
    }
  }
  return out;
}

std::span<const float> scores_of(const std::vector<float>& all, const LlmSpec& m, uint32_t layer,
                                 uint32_t head, uint32_t tokens) {
  return std::span(all).subspan((uint64_t{layer} * m.kv_heads + head) * tokens, tokens);
}

kernels::ScoreSpec plain_window(std::string_view scorer, uint32_t rows, bool keep) {
  kernels::ScoreSpec spec = kernels::score_spec(scorer);
  spec.window.window = rows, spec.window.kernel = 1, spec.window.pool = kernels::Pool::kNone;
  spec.window.keep_window = keep;
  return spec;
}

}  // namespace

TEST_CASE("captured: queries, keys and values are the model's, for any division into chunks") {
  for (const LlmSpec& m : kvtwin::testing::tiny_models()) {
    CAPTURE(m.family);
    const ModelWeights weights = ModelWeights::random(m, 5);
    const std::vector<uint32_t> tokens = some_tokens(41, 9);
    DenseRows rows;
    kvtwin::testing::dense_logits(weights, tokens, &rows);
    Forward forward(&weights);
    CapturedPass whole(&forward, 41), pieces(&forward, 60);
    whole.extend(tokens);
    pieces.extend(std::span(tokens).first(7));
    pieces.extend(some_tokens(20, 1));  // removed again
    pieces.truncate(7);
    for (size_t at = 7; at < tokens.size(); at += 17)
      pieces.extend(std::span(tokens).subspan(at, std::min<size_t>(17, tokens.size() - at)));
    REQUIRE(pieces.tokens() == 41);
    for (uint32_t l = 0; l < m.layers; ++l) {
      CHECK(worst(whole.q(l, 0, 41), rows.q[l]) < 1e-4);
      CHECK(worst(whole.k(l, 0, 41), rows.k[l]) < 1e-4);
      CHECK(worst(whole.v(l, 0, 41), rows.v[l]) < 1e-4);
      const auto same = [](const kernels::HeadsView& a, const kernels::HeadsView& b) {
        for (uint32_t h = 0; h < a.heads; ++h) {
          for (uint32_t i = 0; i < a.rows; ++i)
            CHECK(std::equal(a.row(h, i), a.row(h, i) + a.dim, b.row(h, i)));
        }
      };
      same(whole.q(l, 3, 30), pieces.q(l, 3, 30));
      same(whole.k(l, 3, 30), pieces.k(l, 3, 30));
      same(whole.v(l, 3, 30), pieces.v(l, 3, 30));
    }
  }
}

TEST_CASE("captured: scores use the query tokens that the scorer names, on GQA and MHA") {
  constexpr uint32_t kTokens = 40, kRows = 6;
  for (const LlmSpec& m : kvtwin::testing::tiny_models()) {
    CAPTURE(m.family);
    const ModelWeights weights = ModelWeights::random(m, 5);
    const std::vector<uint32_t> tokens = some_tokens(kTokens, 9);
    DenseRows rows;
    kvtwin::testing::dense_logits(weights, tokens, &rows);
    Forward forward(&weights);
    CapturedPass pass(&forward, kTokens);
    pass.extend(tokens);
    ScoredContext context;
    context.tokens = tokens;
    const auto snapkv = score_captured(plain_window("snapkv", kRows, true), context, &pass);
    const auto tova = score_captured(kernels::score_spec("tova"), context, &pass);
    const auto h2o = score_captured(kernels::score_spec("h2o"), context, &pass);
    const auto knorm = score_captured(kernels::score_spec("knorm"), context, &pass);
    for (uint32_t l = 0; l < m.layers; ++l) {
      std::vector<double> all_heads(kTokens);
      for (uint32_t h = 0; h < m.kv_heads; ++h) {
        const auto last = mean_attention_of(m, rows, l, h, kTokens - 1, kTokens, kTokens);
        for (uint32_t t = 0; t < kTokens; ++t) all_heads[t] += last[t] / m.kv_heads;
      }
      for (uint32_t h = 0; h < m.kv_heads; ++h) {
        const auto window = mean_attention_of(m, rows, l, h, kTokens - kRows, kTokens, kTokens);
        const auto every = mean_attention_of(m, rows, l, h, 0, kTokens, kTokens);
        for (uint32_t t = 0; t < kTokens; ++t) {
          CAPTURE(l);
          CAPTURE(t);
          const float retained = scores_of(snapkv, m, l, h, kTokens)[t];
          if (t < kTokens - kRows) {
            CHECK(retained == doctest::Approx(window[t]).epsilon(1e-3));
          } else {
            CHECK(retained == kernels::kMustStay);
          }
          if (t + 1 < kTokens)
            CHECK(scores_of(tova, m, l, h, kTokens)[t] == doctest::Approx(all_heads[t]).epsilon(1e-3));
          CHECK(scores_of(h2o, m, l, h, kTokens)[t] == doctest::Approx(every[t] * kTokens).epsilon(1e-3));
          double norm = 0;
          for (uint32_t c = 0; c < m.head_dim; ++c) norm += std::pow(rows.k[l][t][h * m.head_dim + c], 2);
          CHECK(-scores_of(knorm, m, l, h, kTokens)[t] == doctest::Approx(std::sqrt(norm)).epsilon(1e-3));
        }
      }
    }
  }
}

TEST_CASE(
    "captured: every scorer that can be scored gives a number to every KV entry and leaves the pass as it "
    "was") {
  const LlmSpec m = kvtwin::testing::tiny_models()[2];
  const ModelWeights weights = ModelWeights::random(m, 5);
  const std::vector<uint32_t> tokens = some_tokens(150, 3), instruction = some_tokens(4, 8);
  Forward forward(&weights);
  ScoredContext context;
  context.tokens = tokens, context.instruction = instruction, context.weights = &weights;
  context.repeat_tokens = 60, context.repeat_tail = 3;
  CapturedPass pass(&forward, 150 + probe_tokens_max(*kernels::find_scorer("kvzip"), context, m.hidden),
                    true);
  pass.extend(tokens);
  const std::vector<float> before = score_captured(kernels::score_spec("knorm"), context, &pass);
  int scored = 0;
  for (const kernels::ScorerDefinition* scorer : kernels::all_scorers()) {
    if (cannot_score(*scorer) || scorer->external) continue;
    CAPTURE(scorer->name);
    const ScorerWeights drawn = ScorerWeights::drawn(*scorer, m, 8, 4);
    context.scorer_weights = scorer->weights != kernels::TrainedWeights::kNone ? &drawn : nullptr;
    const std::vector<float> scores = score_captured(kernels::score_spec(scorer->name), context, &pass);
    REQUIRE(scores.size() == size_t{m.layers} * m.kv_heads * 150);
    CHECK(std::none_of(scores.begin(), scores.end(), [](float x) { return std::isnan(x); }));
    CHECK(scores == score_captured(kernels::score_spec(scorer->name), context, &pass));
    CHECK(*std::min_element(scores.begin(), scores.end()) < *std::max_element(scores.begin(), scores.end()));
    CHECK(pass.tokens() == 150);
    ++scored;
  }
  CHECK(scored == 21);
  CHECK(before == score_captured(kernels::score_spec("knorm"), context, &pass));
}

// J-3 (docs/design/methods/judge-q.md#hit-rate): with the response's tokens as probe tokens, the entries
// that the response attends to are retained. The reference is computed in double, from another forward pass.
TEST_CASE("J-3: on real model data the oracle has hit rate 1, and random hits as often as chance") {
  constexpr uint32_t kTokens = 120, kRows = 12, kBudget = 30;
  double random_rate = 0;
  int models = 0;
  for (const LlmSpec& m : kvtwin::testing::tiny_models()) {
    CAPTURE(m.family);
    const ModelWeights weights = ModelWeights::random(m, 11);
    const std::vector<uint32_t> tokens = some_tokens(kTokens + kRows, 2);
    DenseRows rows;
    kvtwin::testing::dense_logits(weights, tokens, &rows);
    Forward forward(&weights);
    CapturedPass pass(&forward, kTokens + kRows);
    pass.extend(tokens);
    ScoredContext context;
    context.tokens = std::span(tokens).first(kTokens);
    context.response_tokens = kRows;
    const auto oracle = score_captured(plain_window("judge_q", kRows, false), context, &pass);
    const auto random = score_captured(kernels::score_spec("random"), context, &pass);
    std::vector<kernels::HitCount> hits, chance;
    for (uint32_t l = 0; l < m.layers; ++l) {
      for (uint32_t h = 0; h < m.kv_heads; ++h) {
        const auto wanted = mean_attention_of(m, rows, l, h, kTokens, kTokens + kRows, kTokens);
        std::vector<uint32_t> order(kTokens);
        std::iota(order.begin(), order.end(), 0u);
        std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return wanted[a] > wanted[b]; });
        std::vector<uint32_t> critical(order.begin(), order.begin() + kBudget);
        std::sort(critical.begin(), critical.end());
        hits.push_back(kernels::count_hits(
            kernels::select_rows(scores_of(oracle, m, l, h, kTokens), {}, kBudget), critical));
        chance.push_back(kernels::count_hits(
            kernels::select_rows(scores_of(random, m, l, h, kTokens), {}, kBudget), critical));
      }
    }
    CHECK(kernels::hit_rate(hits) == 1.0);
    random_rate += kernels::hit_rate(chance);
    ++models;
  }
  CHECK(random_rate / models == doctest::Approx(kernels::random_hit_rate(kBudget, kTokens)).epsilon(0.25));
}

// The memory is the mean query of the span; every row of it counts.
TEST_CASE("captured: one score per token, by the queries of the span") {
  const LlmSpec m = kvtwin::testing::tiny_models()[2];
  const ModelWeights weights = ModelWeights::random(m, 5);
  constexpr uint32_t kLong = 100;
  const std::vector<uint32_t> tokens = some_tokens(kLong, 9);
  Forward forward(&weights);
  CapturedPass pass(&forward, kLong);
  pass.extend(tokens);
  const auto scores = [&](TokenRange query) {
    ScoredContext context;
    context.tokens = tokens, context.query = query;
    return score_captured(kernels::score_spec("intent_rule"), context, &pass);
  };
  CHECK(scores({}) == scores({kLong - 64, kLong}));
  CHECK(scores({}) != scores({kLong - 63, kLong}));
  const std::vector<float> early = scores({5, 12});
  CHECK(early != scores({}));
  CHECK(early != scores({6, 12}));
  CHECK(early != scores({5, 11}));
  // One row: its score of a token is the mean, over layers and heads, of the softmax of its unit query.
  const std::vector<float> one = scores({7, 8});
  std::vector<double> expected(kLong, 0.0);
  for (uint32_t l = 0; l < m.layers; ++l) {
    for (uint32_t j = 0; j < m.query_heads; ++j) {
      const float* const q = pass.q(l, 7, 1).row(j, 0);
      double length = 0, sum = 0;
      for (uint32_t d = 0; d < m.head_dim; ++d) length += double{q[d]} * q[d];
      std::vector<double> weight(kLong);
      for (uint32_t p = 0; p < kLong; ++p) {
        const float* const k = pass.k(l, 0, kLong).row(j / (m.query_heads / m.kv_heads), p);
        double logit = 0;
        for (uint32_t d = 0; d < m.head_dim; ++d) logit += double{q[d]} * k[d];
        sum += weight[p] = std::exp(logit / std::sqrt(length * m.head_dim));
      }
      for (uint32_t p = 0; p < kLong; ++p) expected[p] += weight[p] / sum / (m.layers * m.query_heads);
    }
  }
  // The rule is scaled by the number of candidates.
  const double factor = one[0] / expected[0];
  for (uint32_t p = 0; p < kLong; ++p) CHECK(one[p] == doctest::Approx(expected[p] * factor).epsilon(1e-4));
}
