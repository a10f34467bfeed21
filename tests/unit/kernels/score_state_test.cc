// Scorers with state or positions: StreamingLLM, random, H2O, TrimKV's decay, RaaS.

#include <doctest/doctest.h>

#include <numeric>

#include "kernels/scoring/keep_metrics.h"
#include "kernels/scoring/score_gate.h"
#include "kernels/scoring/score_h2o.h"
#include "kernels/scoring/score_position.h"
#include "kernels/scoring/score_raas.h"
#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

RowSet streaming_keeps(uint32_t tokens, uint32_t sink, uint32_t keep) {
  std::vector<float> scores(tokens);
  score_streaming({tokens, {}}, sink, packed_scores(scores, 1, tokens));
  return select_rows(scores, {}, keep);
}

double total(std::span<const float> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}  // namespace

TEST_CASE("StreamingLLM: k KV entries are the sinks and the k - sinks most recent") {
  for (const uint32_t tokens : {1u, 4u, 5u, 33u, 200u}) {
    for (uint32_t keep = 4; keep <= tokens; ++keep) {
      CHECK(streaming_keeps(tokens, 4, keep) == sink_and_window(tokens, 4, keep - 4));
    }
  }
}

TEST_CASE("StreamingLLM: decoding in a ring retains exactly k KV entries") {
  std::vector<uint32_t> live(12);
  std::iota(live.begin(), live.end(), 0u);
  std::vector<float> scores;
  for (uint32_t position = 12; position < 500; ++position) {
    live.push_back(position);
    scores.resize(live.size());
    score_streaming({static_cast<uint32_t>(live.size()), live}, 4,
                    packed_scores(scores, 1, static_cast<uint32_t>(live.size())));
    std::vector<uint32_t> next;
    for (const uint32_t row : select_rows(scores, {}, 12)) next.push_back(live[row]);
    live = next;
    std::vector<uint32_t> expected{0, 1, 2, 3};
    for (uint32_t p = position - 7; p <= position; ++p) expected.push_back(p);
    CHECK(live == expected);
  }
}

TEST_CASE("random: draws depend on seed, layer, head and position alone, and hit k/N of any reference") {
  std::vector<float> whole(2 * 4000), part(1 * 10);
  score_random(7, 3, 0, {4000, {}}, packed_scores(whole, 2, 4000));
  const std::vector<uint32_t> some{5, 6, 7, 900, 901, 902, 3000, 3001, 3002, 3999};
  score_random(7, 3, 1, {10, some}, packed_scores(part, 1, 10));
  for (uint32_t i = 0; i < 10; ++i) CHECK(part[i] == whole[4000 + some[i]]);
  CHECK(std::all_of(whole.begin(), whole.end(), [](float s) { return s >= 0.0f && s < 1.0f; }));

  // Hit rate k/N: 400 samples of 250 of 1000 have a standard error of about 0.1 %.
  std::vector<HitCount> counts;
  std::vector<float> scores(1000);
  for (uint64_t seed = 0; seed < 400; ++seed) {
    score_random(seed, 0, 0, {1000, {}}, packed_scores(scores, 1, 1000));
    const RowSet retained = select_rows(scores, {}, 250);
    score_random(seed, 1, 0, {1000, {}}, packed_scores(scores, 1, 1000));
    counts.push_back(count_hits(retained, select_rows(scores, {}, 250)));
  }
  CHECK(random_hit_rate(250, 1000) == 0.25);
  CHECK(std::fabs(hit_rate(counts) - 0.25) < 0.005);
}

TEST_CASE("H2O: every query token adds exactly 1 to a head's accumulators") {
  Prng prng(21);
  for (const Shape& shape : edge_shapes()) {
    const Tensor k = random_tensor(&prng, shape.heads, shape.tokens, shape.dim, 2.0f);
    std::vector<float> a(size_t{shape.heads} * shape.tokens, 0.0f);
    const ScoreView view = packed_scores(a, shape.heads, shape.tokens);
    std::vector<double> expected(a.size(), 0.0);
    for (uint32_t t = 0; t < shape.tokens; ++t) {
      const Tensor q = random_tensor(&prng, shape.heads * shape.group, 1, shape.dim, 3.0f);
      const std::vector<uint32_t> at{t};
      h2o_accumulate({q.view(), at, k.view(), {shape.tokens, {}}, {}, false}, view);
      for (uint32_t j = 0; j < q.heads; ++j) {
        const std::vector<double> row = attend(q.at(j, 0), k, j / shape.group, t + 1);
        for (uint32_t p = 0; p <= t; ++p)
          expected[(j / shape.group) * shape.tokens + p] += row[p] / shape.group;
      }
      for (uint32_t h = 0; h < shape.heads; ++h)
        CHECK(total(view.row(h)) == doctest::Approx(t + 1).epsilon(1e-5));
    }
    for (size_t i = 0; i < a.size(); ++i) CHECK(off_by(a[i], expected[i]) < 5e-5);
  }
}

TEST_CASE("H2O over a prompt: column sums, or sums over the query tokens that can attend to a KV entry") {
  Prng prng(23);
  for (const Shape& shape : edge_shapes()) {
    const Tensor k = random_tensor(&prng, shape.heads, shape.tokens, shape.dim, 2.0f);
    const Tensor q = random_tensor(&prng, shape.heads * shape.group, shape.tokens, shape.dim, 2.0f);
    const std::vector<uint32_t> all = last_positions(shape.tokens, shape.tokens);
    const AttentionScores attention_scores{q.view(), all, k.view(), {shape.tokens, {}}, {}, false};
    for (const ObservedForm form : {ObservedForm::kSum, ObservedForm::kPerRow}) {
      std::vector<float> out(size_t{shape.heads} * shape.tokens);
      const uint32_t window = 3;
      score_observed(form, attention_scores, window, packed_scores(out, shape.heads, shape.tokens));
      for (uint32_t h = 0; h < shape.heads; ++h) {
        std::vector<double> expected(shape.tokens, 0.0);
        for (uint32_t g = 0; g < shape.group; ++g) {
          for (uint32_t i = 0; i < shape.tokens; ++i) {
            const std::vector<double> row = attend(q.at(h * shape.group + g, i), k, h, i + 1);
            for (uint32_t p = 0; p <= i; ++p) expected[p] += row[p] / shape.group;
          }
        }
        for (uint32_t p = 0; p < shape.tokens; ++p) {
          const double rows = form == ObservedForm::kSum ? 1.0 : double(shape.tokens - p);
          const float score = out[h * shape.tokens + p];
          if (p + window >= shape.tokens) {
            CHECK(score == kMustStay);
          } else {
            CHECK(off_by(score, expected[p] / rows) < 5e-5);
          }
        }
      }
    }
  }
}

TEST_CASE("TrimKV: scores are (t - p) log beta, and two KV entries cross exactly once, at t*") {
  Prng prng(24);
  int crossed = 0;
  for (int round = 0; round < 300; ++round) {
    const double log_a = -1e-4 * double(prng.range(1, 200)),
                 log_b = log_a - 1e-4 * double(prng.range(1, 200));
    const uint32_t a = static_cast<uint32_t>(prng.range(0, 500)),
                   b = a + static_cast<uint32_t>(prng.range(1, 500));
    std::vector<float> beta{static_cast<float>(log_a), static_cast<float>(log_b)}, scores(2);
    const std::vector<uint32_t> positions{a, b};
    const double crossing = (a * double{beta[0]} - b * double{beta[1]}) / (double{beta[0]} - double{beta[1]});
    // The older KV entry ranks lower before t* and higher after it, at every step from b's creation on.
    int changes = 0;
    bool ahead_before = false;
    for (uint32_t t = b; t < b + 3000; t += 7) {
      score_trimkv({}, packed_scores(beta, 1, 2), {}, {2, positions}, t, packed_scores(scores, 1, 2));
      CHECK(scores[0] == doctest::Approx((double(t) + 1 - a) * beta[0]).epsilon(1e-6));
      if (std::fabs(double(t) + 1 - crossing) < 1e-3) continue;
      const bool ahead = scores[0] > scores[1];
      CHECK(ahead == (double(t) + 1 > crossing));
      changes += t > b && ahead != ahead_before;
      ahead_before = ahead;
    }
    CHECK(changes <= 1);
    crossed += changes;
  }
  CHECK(crossed > 30);  // it occurs
}

TEST_CASE("TrimKV: the window is retained, and the key norm adds its logarithm") {
  std::vector<float> beta{-0.5f, -0.25f, -0.125f, -0.1f}, scores(4);
  const Tensor k{1, 4, 2, {3, 4, 0, 1, 5, 12, 1, 0}};
  score_trimkv({1, true}, packed_scores(beta, 1, 4), k.view(), {4, {}}, 4, packed_scores(scores, 1, 4));
  CHECK(scores[0] == doctest::Approx(-2.5 + std::log(5.0)));
  CHECK(scores[1] == doctest::Approx(-1.0));
  CHECK(scores[2] == doctest::Approx(-0.375 + std::log(13.0)));
  CHECK(scores[3] == kMustStay);
}

TEST_CASE("RaaS: a page's summary bounds every logit in it, and attention sums to 1") {
  Prng prng(25);
  const uint32_t pages = 6, page = 8, dim = 16;
  const Tensor k = random_tensor(&prng, 2, pages * page, dim), q = random_tensor(&prng, 8, 1, dim, 0.3f);
  Tensor low{2, pages, dim, std::vector<float>(2 * pages * dim)}, high = low;
  for (uint32_t h = 0; h < 2; ++h) {
    for (uint32_t n = 0; n < pages; ++n) {
      for (uint32_t c = 0; c < dim; ++c) {
        const auto value = [&](uint32_t i) { return k.at(h, n * page + i)[c]; };
        low.at(h, n)[c] = high.at(h, n)[c] = value(0);
        for (uint32_t i = 1; i < page; ++i) {
          low.at(h, n)[c] = std::min(low.at(h, n)[c], value(i));
          high.at(h, n)[c] = std::max(high.at(h, n)[c], value(i));
        }
      }
    }
  }
  for (const bool scaled : {false, true}) {
    std::vector<float> attention(2 * pages);
    RaasSpec spec;
    spec.scaled = scaled;
    raas_attention(spec, q.view(), low.view(), high.view(), packed_scores(attention, 2, pages));
    for (uint32_t h = 0; h < 2; ++h) {
      std::vector<double> expected(pages, 0.0);
      for (uint32_t g = 0; g < 4; ++g) {
        std::vector<double> bounds(pages);
        for (uint32_t n = 0; n < pages; ++n) {
          for (uint32_t c = 0; c < dim; ++c) {
            const double x = q.at(h * 4 + g, 0)[c];
            bounds[n] += std::max(x * low.at(h, n)[c], x * high.at(h, n)[c]);
          }
          for (uint32_t i = 0; i < page; ++i) {
            CHECK(bounds[n] >= product(q.at(h * 4 + g, 0), k.at(h, n * page + i), dim) - 1e-9);
          }
          bounds[n] /= scaled ? std::sqrt(double(dim)) : 1.0;
        }
        const std::vector<double> fraction = softmax_of(bounds);
        for (uint32_t n = 0; n < pages; ++n) expected[n] += fraction[n] / 4;
      }
      for (uint32_t n = 0; n < pages; ++n) CHECK(off_by(attention[h * pages + n], expected[n]) < 2e-5);
      CHECK(total(std::span(attention).subspan(h * pages, pages)) == doctest::Approx(1.0));
    }
  }
}

// The page that a budget of one page less drops. Equal stamps: the lowest.
uint32_t dropped_page(std::span<const uint32_t> stamps) {
  std::vector<float> scores(stamps.size());
  score_raas(stamps, 1, scores);
  const RowSet retained = select_rows(scores, {}, static_cast<uint32_t>(stamps.size()) - 1);
  uint32_t page = 0;
  while (page < retained.size() && retained[page] == page) ++page;
  return page;
}

TEST_CASE("RaaS: pages that never matter are dropped first in, first out; a page that always matters stays") {
  std::vector<uint32_t> stamps{1, 2, 3, 4}, page_in_slot{0, 1, 2, 3}, left;
  for (uint32_t now = 5; now < 25; ++now) {
    raas_touch({}, std::vector<float>(4, 0.0f), now, stamps);
    const uint32_t slot = dropped_page(stamps);
    left.push_back(page_in_slot[slot]);
    stamps[slot] = now;
    page_in_slot[slot] = now - 1;
  }
  for (uint32_t n = 0; n < left.size(); ++n) CHECK(left[n] == n);

  std::fill(stamps.begin(), stamps.end(), 0u);
  for (uint32_t now = 1; now < 50; ++now) {
    raas_touch({}, std::vector<float>{0.0f, 0.0f, 2e-4f, 0.0f}, now, stamps);
    const uint32_t slot = dropped_page(stamps);
    CHECK(slot != 2);
    stamps[slot] = now;
  }
  // Entries have the stamp of their page, and the lowest of equal stamps are dropped first.
  std::vector<float> scores(8);
  score_raas(std::vector<uint32_t>{3, 1, 1, 2}, 2, scores);
  CHECK(select_rows(scores, {}, 5) == RowSet{0, 1, 5, 6, 7});
}

TEST_CASE("RaaS: a long prompt is ranked by the last query, averaged over its group") {
  Prng prng(26);
  const Tensor k = random_tensor(&prng, 2, 20, 8), q = random_tensor(&prng, 6, 3, 8);
  std::vector<float> out(40);
  score_raas_prompt(q.view(), k.view(), packed_scores(out, 2, 20));
  for (uint32_t h = 0; h < 2; ++h) {
    for (uint32_t i = 0; i < 20; ++i) {
      double sum = 0;
      for (uint32_t g = 0; g < 3; ++g) sum += product(q.at(h * 3 + g, 2), k.at(h, i), 8) / 3;
      CHECK(out[h * 20 + i] == doctest::Approx(sum).epsilon(1e-4));
    }
  }
}
