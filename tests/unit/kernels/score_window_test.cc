#include "kernels/scoring/score_window.h"

#include <doctest/doctest.h>

#include <numeric>

#include "kernels/scoring/keep_metrics.h"
#include "kernels/select/select.h"
#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

using Lanes = std::vector<std::vector<double>>;

std::vector<double> smooth(const std::vector<double>& in, Pool pool, uint32_t kernel) {
  if (pool == Pool::kNone) return in;
  const int half = static_cast<int>(kernel) / 2, n = static_cast<int>(in.size());
  std::vector<double> out(in.size());
  for (int i = 0; i < n; ++i) {
    double sum = 0, largest = -INFINITY;
    for (int o = -half; o <= half; ++o) {
      const bool there = i + o >= 0 && i + o < n;
      sum += there ? in[static_cast<size_t>(i + o)] : 0.0;
      if (there) largest = std::max(largest, in[static_cast<size_t>(i + o)]);
    }
    out[static_cast<size_t>(i)] = pool == Pool::kAverage ? sum / kernel : largest;
  }
  return out;
}

std::vector<double> join(const Lanes& lanes, Reduce reduce) {
  std::vector<double> out(lanes[0].size());
  for (size_t p = 0; p < out.size(); ++p) {
    double sum = 0, largest = -INFINITY;
    for (const auto& lane : lanes) {
      sum += lane[p];
      largest = std::max(largest, lane[p]);
    }
    out[p] = reduce == Reduce::kMax ? largest : reduce == Reduce::kSum ? sum : sum / double(lanes.size());
  }
  return out;
}

// SnapKV of one KV head, directly from docs/design/methods/uniform.md#snapkv: q [Hq][w][d] belongs to the
// last w rows of k.
std::vector<double> naive_snapkv(const WindowSpec& spec, const Tensor& q, const Tensor& k, uint32_t h) {
  const uint32_t group = q.heads / k.heads, w = q.rows, n = k.rows - w;
  Lanes maps(spec.order == PoolOrder::kReduceLogitsFirst ? 1 : group, std::vector<double>(n, 0.0));
  for (uint32_t i = 0; i < w; ++i) {
    const uint32_t visible = spec.causal ? n + i + 1 : k.rows;
    if (spec.order == PoolOrder::kReduceLogitsFirst) {
      std::vector<double> logits(visible, -INFINITY);
      for (uint32_t g = 0; g < group; ++g) {
        for (uint32_t p = 0; p < visible; ++p) {
          const double logit = product(q.at(h * group + g, i), k.at(h, p), k.dim) / std::sqrt(double(k.dim));
          logits[p] = std::max(logits[p], logit);
        }
      }
      const std::vector<double> row = softmax_of(logits);
      for (uint32_t p = 0; p < n; ++p) maps[0][p] += row[p] / w;
      continue;
    }
    for (uint32_t g = 0; g < group; ++g) {
      const std::vector<double> row = attend(q.at(h * group + g, i), k, h, visible);
      const double weight = spec.weigh_visible ? visible : 1.0;
      for (uint32_t p = 0; p < n; ++p) maps[g][p] += weight * row[p] / w;
    }
  }
  if (spec.order == PoolOrder::kPoolThenReduce) {
    for (auto& map : maps) map = smooth(map, spec.pool, spec.kernel);
    return join(maps, spec.reduce);
  }
  return smooth(maps.size() == 1 ? maps[0] : join(maps, spec.reduce), spec.pool, spec.kernel);
}

struct Case {
  Tensor q, k;
  std::vector<uint32_t> positions;
  AttentionScores attention_scores() const {
    return {q.view(), positions, k.view(), {k.rows, {}}, {}, false};
  }
};

Case make_case(Prng* prng, const Shape& shape, uint32_t window) {
  const uint32_t w = std::min(window, shape.tokens);
  return {random_tensor(prng, shape.heads * shape.group, w, shape.dim, 3.0f),
          random_tensor(prng, shape.heads, shape.tokens, shape.dim, 2.0f), last_positions(shape.tokens, w)};
}

std::vector<float> scores_of(const WindowSpec& spec, const AttentionScores& attention_scores) {
  std::vector<float> out(size_t{attention_scores.k.heads} * attention_scores.k.rows);
  score_window(spec, attention_scores, packed_scores(out, attention_scores.k.heads, attention_scores.k.rows));
  return out;
}

std::vector<WindowSpec> all_specs() {
  using enum WindowCodeBase;
  std::vector<WindowSpec> specs;
  for (const WindowCodeBase base :
       {kKvpress, kAdaKv, kKvCacheFactory, kTangram, kIntentKv, kH2oWindow, kFinch}) {
    specs.push_back(window_spec(base));
    specs.back().window = 8;  // smaller shapes
  }
  for (const Reduce reduce : {Reduce::kMax, Reduce::kSum}) {
    specs.push_back(specs[2]);
    specs.back().reduce = reduce;
    specs.back().pool = Pool::kMax;
  }
  specs.push_back(specs[0]);  // an average commutes with a mean, a maximum does not
  specs.back().pool = Pool::kMax;
  return specs;
}

}  // namespace

TEST_CASE("SnapKV: the variant of every code base agrees with its formula in double") {
  Prng prng(11);
  for (const WindowSpec& spec : all_specs()) {
    for (const Shape& shape : edge_shapes()) {
      const Case c = make_case(&prng, shape, spec.window);
      const std::vector<float> scores = scores_of(spec, c.attention_scores());
      const uint32_t n = shape.tokens - c.q.rows;
      for (uint32_t h = 0; h < shape.heads; ++h) {
        const std::vector<double> expected = naive_snapkv(spec, c.q, c.k, h);
        for (uint32_t p = 0; p < shape.tokens; ++p) {
          const float score = scores[h * shape.tokens + p];
          if (p >= n) {
            CHECK(score == kMustStay);
          } else {
            CHECK(off_by(score, expected[p]) < 2e-5);
          }
        }
      }
    }
  }
}

TEST_CASE("SnapKV: rows gathered by a list score as the same rows in order") {
  Prng prng(15);
  const Case c = make_case(&prng, {2, 2, 50, 8}, 8);
  const std::vector<uint32_t> rows{0, 3, 4, 9, 20, 21, 22, 40, 42, 43, 44, 45, 46, 47, 48, 49};
  Tensor gathered{2, 16, 8, std::vector<float>(2 * 16 * 8)};
  for (uint32_t h = 0; h < 2; ++h) {
    for (uint32_t i = 0; i < 16; ++i) std::copy_n(c.k.at(h, rows[i]), 8, gathered.at(h, i));
  }
  AttentionScores listed = c.attention_scores(), copied = c.attention_scores();
  listed.k.rows = copied.k.rows = 16;
  listed.k.list = rows;
  copied.k = gathered.view();
  listed.positions = copied.positions = {16, rows};
  const WindowSpec spec = window_spec(WindowCodeBase::kAdaKv);
  CHECK(scores_of(spec, listed) == scores_of(spec, copied));

  // Each head has its own rows.
  std::vector<uint32_t> own = rows;
  for (const uint32_t row : rows) own.push_back(row == 0 ? 1 : row);
  std::copy_n(c.k.at(1, 1), 8, gathered.at(1, 0));
  listed.k.list = own;
  listed.positions = copied.positions = {16, own};
  CHECK(scores_of(spec, listed) == scores_of(spec, copied));
  CHECK(heads_of(listed.k, 1, 1).row(0, 0) == c.k.at(1, 1));
}

TEST_CASE("TOVA: the last query of all heads gives one score for every KV head, and the last token stays") {
  Prng prng(16);
  for (const Shape& shape : edge_shapes()) {
    const Case c = make_case(&prng, shape, 3);
    std::vector<float> out(size_t{shape.heads} * shape.tokens);
    score_tova(c.attention_scores(), packed_scores(out, shape.heads, shape.tokens));
    std::vector<double> expected(shape.tokens, 0.0);
    for (uint32_t j = 0; j < c.q.heads; ++j) {
      const std::vector<double> row = attend(c.q.at(j, c.q.rows - 1), c.k, j / shape.group, shape.tokens);
      for (uint32_t p = 0; p < shape.tokens; ++p) expected[p] += row[p] / c.q.heads;
    }
    for (uint32_t h = 0; h < shape.heads; ++h) {
      for (uint32_t p = 0; p + 1 < shape.tokens; ++p) {
        CHECK(off_by(out[h * shape.tokens + p], expected[p]) < 2e-5);
      }
      CHECK(out[(h + 1) * shape.tokens - 1] == kMustStay);
    }
  }
}

TEST_CASE(
    "Judge Q: probe tokens attend to the whole prompt and earlier probe tokens, and none of them is "
    "retained") {
  Prng prng(17);
  for (const Shape& shape : edge_shapes()) {
    const uint32_t probes = 5;
    const Tensor k = random_tensor(&prng, shape.heads, shape.tokens, shape.dim, 2.0f);
    const Tensor q = random_tensor(&prng, shape.heads * shape.group, probes, shape.dim, 2.0f);
    const Tensor own = random_tensor(&prng, shape.heads, probes, shape.dim, 2.0f);
    // The prompt and the probe tokens as one sequence.
    Tensor all{shape.heads, shape.tokens + probes, shape.dim, {}};
    all.values.resize(size_t{all.heads} * all.rows * all.dim);
    for (uint32_t h = 0; h < shape.heads; ++h) {
      for (uint32_t i = 0; i < all.rows; ++i) {
        std::copy_n(i < k.rows ? k.at(h, i) : own.at(h, i - k.rows), k.dim, all.at(h, i));
      }
    }
    for (const bool renormalise : {false, true}) {
      const AttentionScores attention_scores{q.view(), {}, k.view(), {k.rows, {}}, own.view(), renormalise};
      const std::vector<float> sums =
          scores_of({.kernel = 1, .pool = Pool::kNone, .reduce = Reduce::kSum}, attention_scores);
      for (uint32_t h = 0; h < shape.heads; ++h) {
        std::vector<double> expected(k.rows, 0.0);
        for (uint32_t j = h * shape.group; j < (h + 1) * shape.group; ++j) {
          for (uint32_t i = 0; i < probes; ++i) {
            const std::vector<double> row = attend(q.at(j, i), all, h, k.rows + i + 1);
            double mass = 0;
            for (uint32_t p = 0; p < k.rows; ++p) mass += row[p];
            for (uint32_t p = 0; p < k.rows; ++p) expected[p] += row[p] / (renormalise ? mass : 1.0) / probes;
          }
        }
        for (uint32_t p = 0; p < k.rows; ++p) CHECK(off_by(sums[h * k.rows + p], expected[p]) < 2e-5);
      }
      const std::vector<float> scores = scores_of(window_spec(WindowCodeBase::kJudgeQ), attention_scores);
      CHECK(std::none_of(scores.begin(), scores.end(), [](float s) { return s == kMustStay; }));
    }
  }
}

TEST_CASE("J-2 with a budget of N or more, Judge Q retains every entry") {
  Prng prng(18);
  const Case c = make_case(&prng, {2, 4, 30, 16}, 1);
  const Tensor probes = random_tensor(&prng, 8, 4, 16);
  const AttentionScores attention_scores{probes.view(), {}, c.k.view(), {30, {}}, {}, false};
  const std::vector<float> scores = scores_of(window_spec(WindowCodeBase::kJudgeQ), attention_scores);
  for (const uint32_t budget : {30u, 31u, 1000u}) {
    for (uint32_t h = 0; h < 2; ++h)
      CHECK(select_rows(std::span(scores).subspan(h * 30, 30), {}, budget).size() == 30);
  }
}

TEST_CASE("J-3 oracle mode: probe tokens equal to the response tokens have hit rate 1") {
  Prng prng(19);
  const Tensor k = random_tensor(&prng, 2, 120, 16, 2.0f);
  const Tensor response = random_tensor(&prng, 8, 6, 16, 2.0f), own = random_tensor(&prng, 2, 6, 16, 2.0f);
  const Tensor others = random_tensor(&prng, 8, 6, 16, 2.0f);
  const WindowSpec spec = window_spec(WindowCodeBase::kJudgeQ);
  const AttentionScores oracle{response.view(), {}, k.view(), {120, {}}, own.view(), false};
  const AttentionScores soft{others.view(), {}, k.view(), {120, {}}, own.view(), false};
  const std::vector<float> reference = scores_of(spec, oracle), same = scores_of(spec, oracle),
                           other = scores_of(spec, soft);
  std::vector<HitCount> equal, different;
  for (uint32_t h = 0; h < 2; ++h) {
    const RowSet wanted = select_rows(std::span(reference).subspan(h * 120, 120), {}, 24);
    equal.push_back(count_hits(select_rows(std::span(same).subspan(h * 120, 120), {}, 24), wanted));
    different.push_back(count_hits(select_rows(std::span(other).subspan(h * 120, 120), {}, 24), wanted));
  }
  CHECK(hit_rate(equal) == 1.0);
  CHECK(hit_rate(different) < 1.0);
}
