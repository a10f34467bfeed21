// The kernels of methods that drop cells against their definitions: scores within fp32's rounding of the same
// bf16 numbers; selection and compaction to the bit.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "kernels/attention_rows.h"
#include "kernels/cell_marks.h"
#include "kernels/compact_cells.h"
#include "kernels/gate_weights.h"
#include "kernels/score_h2o.h"
#include "kernels/score_keys.h"
#include "kernels/score_keys_cuda.h"
#include "kernels/score_look.h"
#include "kernels/score_raas.h"
#include "kernels/score_window.h"
#include "kernels/select.h"
#include "kernels/select_cells.h"
#include "tests/kernels/cell_problem.cuh"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

using Floats = std::vector<float>;

// Largest difference against the largest finite number; what is infinite must be infinite in both.
double off(const float* got, const Floats& expected) {
  double size = 1e-30, worst = 0;
  for (const float x : expected) size = std::isfinite(x) ? std::max(size, std::abs(double{x})) : size;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (got[i] == expected[i]) continue;
    if (!std::isfinite(got[i]) || !std::isfinite(expected[i])) return INFINITY;
    worst = std::max(worst, std::abs(double{got[i]} - double{expected[i]}) / size);
  }
  return worst;
}

// Sums of at most some thousand fp32 products in another order, and powers of logits of about ten.
constexpr double kScoreError = 3e-5;

const std::vector<std::vector<uint32_t>> kRows = {{1}, {40, 7, 129, 128}, {500, 1, 333}, {1, 16, 700}};
const std::vector<std::vector<uint32_t>> kFirst = {{0}, {0, 5, 16, 31}, {3, 0, 100}, {17, 1, 0}};

TEST_CASE("1.5 knorm and keydiff on the device are those of the definition") {
  for (const CellProblem::Shape& shape : cell_shapes()) {
    for (size_t n = 0; n < kRows.size(); ++n) {
      const CellProblem p(shape, kRows[n], kFirst[n], 10 + n);
      const uint64_t stride = p.rows_max + 3;
      const DeviceArray<float> scores(Floats(p.count() * stride, NAN));
      const DeviceArray<float> workspace(keydiff_floats(p.count(), p.rows_max, shape.dim));
      const KeyScoreArgs args{p.cells(), p.heads_on.get(), scores.get(),   stride,
                              p.count(), p.rows_max,       workspace.get()};
      for (const bool diff : {false, true}) {
        KVT_CUDA(diff ? score_keydiff_cells(args, nullptr) : score_knorm_cells(args, nullptr));
        const Floats got = scores.read();
        for (uint32_t h = 0; h < p.count(); ++h) {
          Floats expected(p.heads[h].rows);
          const auto view = kernels::packed_scores(expected, 1, p.heads[h].rows);
          diff ? kernels::score_keydiff(p.keys_of(h), view) : kernels::score_knorm(p.keys_of(h), view);
          CHECK(off(got.data() + h * stride, expected) < 1e-5);
          CHECK(std::isnan(got[h * stride + p.heads[h].rows]));
        }
      }
    }
  }
}

// Query rows of `group` heads for each head of a problem, each head its own, and what they see.
struct LookProblem {
  const CellProblem& cells;
  uint32_t group, queries;
  std::vector<LookHead> heads;
  std::vector<uint32_t> visible;
  Floats q;  // [count * queries][group][dim]
  DeviceArray<__nv_bfloat16> q_on;
  DeviceArray<LookHead> heads_on;
  DeviceArray<uint32_t> visible_on;
  DeviceArray<float> sums;
  DeviceArray<char> workspace;
  LookArgs args;

  // Causal: the queries are at the last positions of each head.
  LookProblem(const CellProblem& c, uint32_t g, uint32_t w, bool causal, bool keep_window, uint64_t seed)
      : cells(c), group(g), queries(w) {
    std::mt19937_64 random(seed);
    const Bf16s numbers = normal_bf16(&random, size_t{c.count()} * w * g * c.shape.dim, 1.5f);
    q = widened(numbers);
    for (uint32_t h = 0; h < c.count(); ++h) {
      const uint32_t rows = c.heads[h].rows, seen = std::min(w, rows);
      LookHead head{c.heads[h], h * w, 0, w, static_cast<uint32_t>(visible.size()), rows};
      for (uint32_t i = 0; i < w; ++i)
        visible.push_back(causal ? rows - seen + std::min(i, seen - 1) + 1 : rows);
      if (keep_window) head.scored = rows - seen;
      heads.push_back(head);
    }
    q_on = DeviceArray<__nv_bfloat16>(numbers);
    heads_on = DeviceArray<LookHead>(heads);
    visible_on = DeviceArray<uint32_t>(visible);
    args.cells = c.cells(), args.heads = heads_on.get(), args.q = q_on.get();
    args.visible = visible_on.get(), args.stride = c.rows_max + 5;
    args.scale = 1 / std::sqrt(static_cast<float>(c.shape.dim));
    args.count = c.count(), args.group = g, args.q_stride = g * c.shape.dim;
    args.rows_max = c.rows_max, args.queries_max = w;
    sums = DeviceArray<float>(Floats(size_t{c.count()} * g * args.stride, NAN));
    workspace = DeviceArray<char>(std::vector<char>(look_workspace_bytes(args), 0x7f));
    args.sums = sums.get(), args.workspace = workspace.get();
  }
  // The same of one head for the definition; positions are row numbers.
  kernels::Look look(uint32_t h, const std::vector<uint32_t>& positions) const {
    const uint32_t dim = cells.shape.dim;
    return {{q.data() + size_t{h} * queries * group * dim, group, queries, dim, dim, size_t{group} * dim, {}},
            positions,
            cells.keys_of(h),
            {cells.heads[h].rows, {}},
            {},
            false};
  }
  std::vector<uint32_t> positions(uint32_t h) const {
    std::vector<uint32_t> out;
    for (uint32_t i = 0; i < queries; ++i) out.push_back(visible[heads[h].visible + i] - 1);
    return out;
  }
};

WindowScoreArgs window_args(const kernels::WindowSpec& spec, const LookArgs& look, float* scores,
                            uint64_t stride) {
  WindowScoreArgs out{look, scores, stride, spec.kernel};
  if (spec.pool == kernels::Pool::kAverage) out.pool = LookPool::kAverage;
  if (spec.pool == kernels::Pool::kMax) out.pool = LookPool::kMax;
  if (spec.reduce == kernels::Reduce::kMax) out.reduce = LookReduce::kMax;
  if (spec.reduce == kernels::Reduce::kSum) out.reduce = LookReduce::kSum;
  out.pool_first = spec.order == kernels::PoolOrder::kPoolThenReduce;
  return out;
}

TEST_CASE("1.3 window scorers on the device are those of the definition, in every code base's order") {
  using enum kernels::WindowCodeBase;
  double worst = 0;
  for (const CellProblem::Shape& shape : cell_shapes()) {
    for (size_t n = 0; n < kRows.size(); ++n) {
      const CellProblem p(shape, kRows[n], kFirst[n], 20 + n);
      for (const auto code : {kKvpress, kAdaKv, kKvCacheFactory, kTangram, kJudgeQ, kH2oWindow, kFinch}) {
        const kernels::WindowSpec spec = kernels::window_spec(code);
        const uint32_t group = 1 + (n + static_cast<uint32_t>(code)) % 8;
        const uint32_t queries = n == 0 ? 1 : 5 + 9 * static_cast<uint32_t>(code);
        LookProblem look(p, group, queries, spec.causal && spec.keep_window, spec.keep_window, 30 + n);
        look.args.join_logits = spec.order == kernels::PoolOrder::kReduceLogitsFirst;
        look.args.weigh_visible = spec.weigh_visible;
        const uint64_t stride = p.rows_max;
        const DeviceArray<float> scores(Floats(p.count() * stride, NAN));
        KVT_CUDA(look_at_cells(look.args, nullptr));
        KVT_CUDA(score_window_cells(window_args(spec, look.args, scores.get(), stride), nullptr));
        const Floats got = scores.read();
        for (uint32_t h = 0; h < p.count(); ++h) {
          const uint32_t rows = p.heads[h].rows;
          Floats expected(rows);
          std::vector<uint32_t> at = look.positions(h);
          // What the definition takes for the window: rows from the first query's position on.
          if (!spec.causal) std::iota(at.begin(), at.end(), rows > queries ? rows - queries : 0);
          kernels::score_window(spec, look.look(h, spec.keep_window ? at : std::vector<uint32_t>{}),
                                kernels::packed_scores(expected, 1, rows));
          const double error = off(got.data() + h * stride, expected);
          CAPTURE(static_cast<int>(code));
          CAPTURE(rows);
          CAPTURE(shape.page);
          CHECK(error < kScoreError);
          worst = std::max(worst, error);
        }
      }
    }
  }
  MESSAGE("largest error against the largest score: " << worst);
}

TEST_CASE("1.2 1.5 1.9 TOVA, H2O's sums, RaaS's stamps and KVzip's maxima are those of the definition") {
  for (const CellProblem::Shape& shape : cell_shapes()) {
    const CellProblem p(shape, {300, 300, 300}, {0, 3, 40}, 7);
    const uint32_t rows = 300, group = 4, dim = shape.dim;
    const uint64_t stride = rows;
    const DeviceArray<float> scores(Floats(3 * stride, NAN));
    {  // TOVA: one layer of three heads
      const LookProblem look(p, group, 1, true, true, 8);
      KVT_CUDA(look_at_cells(look.args, nullptr));
      KVT_CUDA(score_layer_cells({look.args, scores.get(), stride, 3}, nullptr));
      const Floats got = scores.read();
      Floats keys, expected(3 * rows);
      for (uint32_t h = 0; h < 3; ++h) keys.insert(keys.end(), p.keys[h].begin(), p.keys[h].end());
      const std::vector<uint32_t> at = {rows - 1};
      const kernels::Look all{{look.q.data(), 3 * group, 1, dim, dim, 0, {}},
                              at,
                              kernels::packed_heads(keys, 3, rows, dim),
                              {rows, {}},
                              {},
                              false};
      kernels::score_tova(all, kernels::packed_scores(expected, 3, rows));
      CHECK(off(got.data(), expected) < kScoreError);
    }
    {  // H2O: a chunk of 37 rows
      const LookProblem look(p, group, 37, true, false, 9);
      KVT_CUDA(look_at_cells(look.args, nullptr));
      KVT_CUDA(gather_marks({look.args, p.marks.get()}, nullptr));
      const Floats got = p.marks.read();
      for (uint32_t h = 0; h < 3; ++h) {
        Floats expected(rows), mine(rows);
        for (uint32_t c = 0; c < rows; ++c) {
          expected[c] = p.host_marks[p.mark_at(p.heads[h], p.heads[h].first + c)];
          mine[c] = got[p.mark_at(p.heads[h], p.heads[h].first + c)];
        }
        const std::vector<uint32_t> at = look.positions(h);
        kernels::h2o_accumulate(look.look(h, at), kernels::packed_scores(expected, 1, rows));
        CHECK(off(mine.data(), expected) < kScoreError);
      }
    }
    {  // RaaS: stamped are those that draw more than alpha
      const LookProblem look(p, group, 1, true, false, 10);
      LookArgs args = look.args;
      args.scale = 1;
      const float alpha = 1e-3f;
      KVT_CUDA(cudaMemcpy(p.marks.get(), p.host_marks.data(), p.marks.bytes(), cudaMemcpyHostToDevice));
      KVT_CUDA(look_at_cells(args, nullptr));
      KVT_CUDA(stamp_cells({args, p.marks.get(), alpha, 77}, nullptr));
      const Floats got = p.marks.read();
      uint32_t stamped = 0;
      for (uint32_t h = 0; h < 3; ++h) {
        Floats attention(rows);
        kernels::RaasSpec spec;
        const std::vector<uint32_t> at = look.positions(h);
        const kernels::Look one = look.look(h, at);
        kernels::raas_attention(spec, one.q, one.k, one.k, kernels::packed_scores(attention, 1, rows));
        for (uint32_t c = 0; c < rows; ++c) {
          if (std::abs(attention[c] - alpha) < 1e-3f * alpha) continue;  // rounding may decide
          const size_t mark = p.mark_at(p.heads[h], p.heads[h].first + c);
          CHECK(got[mark] == (attention[c] > alpha ? 77 : p.host_marks[mark]));
          stamped += attention[c] > alpha;
        }
      }
      CHECK(stamped > 0);
      KVT_CUDA(score_pointed_cells(look.args, scores.get(), stride, nullptr));
      const Floats pointed = scores.read();
      for (uint32_t h = 0; h < 3; ++h) {
        Floats expected(rows);
        const std::vector<uint32_t> at = look.positions(h);
        const kernels::Look one = look.look(h, at);
        kernels::score_raas_prompt(one.q, one.k, kernels::packed_scores(expected, 1, rows));
        CHECK(off(pointed.data() + h * stride, expected) < kScoreError);
      }
    }
    {  // KVzip: the largest probability
      LookProblem look(p, group, 21, false, false, 11);
      look.args.largest = true;
      KVT_CUDA(look_at_cells(look.args, nullptr));
      WindowScoreArgs args{look.args, scores.get(), stride};
      args.reduce = LookReduce::kMax;
      KVT_CUDA(score_window_cells(args, nullptr));
      const Floats got = scores.read();
      for (uint32_t h = 0; h < 3; ++h) {
        Floats expected(rows, 0), row;
        const kernels::Look one = look.look(h, {});
        for (uint32_t j = 0; j < group; ++j) {
          for (uint32_t i = 0; i < 21; ++i) {
            kernels::look_row(one, j, i, &row);
            for (uint32_t c = 0; c < rows; ++c) expected[c] = std::max(expected[c], row[c]);
          }
        }
        CHECK(off(got.data() + h * stride, expected) < kScoreError);
      }
    }
  }
}

struct SelectProblem {
  std::vector<SelectHead> heads;
  std::vector<RowRange> forced;
  std::vector<Floats> scores;
  uint32_t kept = 0, rows_max = 0;

  void add(Floats of_rows, uint32_t keep, const std::vector<RowRange>& ranges) {
    SelectHead head{static_cast<uint32_t>(of_rows.size()), keep, static_cast<uint32_t>(forced.size()),
                    static_cast<uint32_t>(ranges.size()), kept};
    uint32_t stay = keep;
    for (const RowRange& range : ranges) stay += range.end - range.begin;
    kept += std::min(head.rows, stay);
    forced.insert(forced.end(), ranges.begin(), ranges.end());
    rows_max = std::max(rows_max, head.rows);
    heads.push_back(head);
    scores.push_back(std::move(of_rows));
  }
  void check() const {
    const uint64_t stride = rows_max + 1;
    Floats all(heads.size() * stride, NAN);
    for (size_t h = 0; h < heads.size(); ++h) std::copy(scores[h].begin(), scores[h].end(), &all[h * stride]);
    const DeviceArray<float> scores_on(all);
    const DeviceArray<SelectHead> heads_on(heads);
    const DeviceArray<RowRange> forced_on(forced);
    const DeviceArray<uint32_t> kept_on(std::vector<uint32_t>(kept + 1, 0xdeadbeef));
    const DeviceArray<uint32_t> nan_on(std::vector<uint32_t>{0});
    KVT_CUDA(select_cells({scores_on.get(), stride, heads_on.get(), forced_on.get(), kept_on.get(),
                           nan_on.get(), static_cast<uint32_t>(heads.size()), rows_max},
                          nullptr));
    const std::vector<uint32_t> got = kept_on.read();
    uint64_t nan = 0;
    for (size_t h = 0; h < heads.size(); ++h) {
      std::vector<uint32_t> rows;
      for (uint32_t i = 0; i < heads[h].forced_count; ++i) {
        const RowRange& range = forced[heads[h].forced_first + i];
        for (uint32_t row = range.begin; row < range.end; ++row) rows.push_back(row);
      }
      const kernels::RowSet expected = kernels::select_rows(scores[h], rows, heads[h].keep, &nan);
      const auto first = got.begin() + heads[h].kept;
      CAPTURE(h);
      CHECK(std::equal(expected.begin(), expected.end(), first));
    }
    CHECK(got[kept] == 0xdeadbeef);
    CHECK(nan_on.read()[0] == nan);
  }
};

TEST_CASE("G-1 select_cells: the rows that the definition selects, whatever the scores") {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (const uint32_t size : {1u, 2u, 100u, 1023u, 1024u, 1025u, 5000u, 60000u}) {
    SelectProblem p;
    for (uint32_t kind = 0; kind < 8; ++kind) {
      Floats scores(size);
      for (float& x : scores) {
        x = normal(random);
        if (kind == 1) x = static_cast<float>(static_cast<int>(random() % 5));  // ties
        if (kind == 2) x = 1;
        if (kind == 3 && random() % 4 == 0) x = NAN;
        if (kind == 4 && random() % 3 == 0) x = random() % 2 == 0 ? INFINITY : -INFINITY;
        if (kind == 5) x *= 1e-38f;  // subnormals
        if (kind == 6) x = random() % 2 == 0 ? 0.0f : -0.0f;
        if (kind == 7) x = std::abs(x) * 1e-6f + 0.5f;  // one exponent
      }
      for (const uint32_t keep : {0u, 1u, size / 3, size - 1, size, size + 7}) {
        p.add(scores, keep, {});
        if (size > 10) p.add(scores, keep, {{0, 4}, {size / 2, size / 2 + 3}, {size - 2, size}});
        if (size > 1) p.add(scores, keep, {{0, size}});
      }
    }
    p.add({}, 3, {});
    p.check();
  }
}

TEST_CASE(
    "T-5 select_cells: the device's and the definition's scores keep the same rows but at the boundary") {
  const CellProblem p({16, 1, 128}, {4000, 4000, 3000}, {0, 8, 16}, 5);
  const LookProblem look(p, 4, 32, true, true, 6);
  const kernels::WindowSpec spec = kernels::window_spec(kernels::WindowCodeBase::kAdaKv);
  const DeviceArray<float> scores(Floats(p.count() * size_t{4000}, NAN));
  KVT_CUDA(look_at_cells(look.args, nullptr));
  KVT_CUDA(score_window_cells(window_args(spec, look.args, scores.get(), 4000), nullptr));
  const Floats got = scores.read();
  uint32_t differ = 0;
  for (uint32_t h = 0; h < p.count(); ++h) {
    const uint32_t rows = p.heads[h].rows, keep = 400;
    Floats expected(rows);
    const std::vector<uint32_t> at = look.positions(h);
    kernels::score_window(spec, look.look(h, at), kernels::packed_scores(expected, 1, rows));
    const Floats mine(got.begin() + h * 4000, got.begin() + h * 4000 + rows);
    const kernels::RowSet a = kernels::select_rows(mine, {}, keep),
                          b = kernels::select_rows(expected, {}, keep);
    float largest = 0, last = INFINITY;
    for (const float x : expected) largest = std::isfinite(x) ? std::max(largest, x) : largest;
    for (const uint32_t row : b) last = std::min(last, expected[row]);
    std::vector<uint32_t> others;
    std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(others));
    // The rule: a row whose score is further than twice the error bound from the last kept one's stays or
    // goes on both sides.
    for (const uint32_t row : others)
      CHECK(std::abs(expected[row] - last) <= 2 * kScoreError * static_cast<double>(largest));
    differ += static_cast<uint32_t>(others.size());
  }
  MESSAGE(differ << " rows of " << 3 * 400 << " kept differ");
}

TEST_CASE("compact_cells: kept rows move in place, with their marks, and nothing else changes") {
  std::mt19937_64 random(4);
  for (const CellProblem::Shape& shape : cell_shapes()) {
    if (shape.listed) continue;
    for (const bool rerotate : {false, true}) {
      const CellProblem p(shape, {1, 50, 333, 700, 64}, {0, 7, 16, 3, 100}, 40);
      std::vector<CompactHead> heads;
      std::vector<uint32_t> kept;
      Bf16s pool = p.host_pool;
      Floats marks = p.host_marks, inv_freq;
      for (uint32_t i = 0; i < shape.dim / 2; ++i)
        inv_freq.push_back(std::pow(1e4f, -2.f * static_cast<float>(i) / static_cast<float>(shape.dim)));
      std::vector<std::pair<size_t, float>> turned;
      for (uint32_t h = 0; h < p.count(); ++h) {
        const CellHead& head = p.heads[h];
        CompactHead compact{head, head.table, head.first, static_cast<uint32_t>(kept.size()), 0};
        for (uint32_t row = 0; row < head.rows; ++row) {
          if (random() % 3 == 0 && head.rows > 1) continue;
          const uint32_t to = head.first + compact.count, from = head.first + row;
          kept.push_back(row), ++compact.count;
          marks[p.mark_at(head, to)] = p.host_marks[p.mark_at(head, from)];
          for (uint32_t c = 0; c < shape.dim; ++c) {
            pool[p.at(head, to, c, true)] = p.host_pool[p.at(head, from, c, true)];
            pool[p.at(head, to, c, false)] = p.host_pool[p.at(head, from, c, false)];
            if (!rerotate || to == from) continue;
            const uint32_t pair = c % (shape.dim / 2), half = shape.dim / 2;
            const double angle = (static_cast<double>(to) - from) * double{inv_freq[pair]};
            const double a = double{__bfloat162float(p.host_pool[p.at(head, from, pair, false)])},
                         b = double{__bfloat162float(p.host_pool[p.at(head, from, pair + half, false)])};
            const double value = c < half ? a * std::cos(angle) - b * std::sin(angle)
                                          : b * std::cos(angle) + a * std::sin(angle);
            turned.emplace_back(p.at(head, to, c, false), static_cast<float>(value));
          }
        }
        heads.push_back(compact);
      }
      const DeviceArray<CompactHead> heads_on(heads);
      const DeviceArray<uint32_t> kept_on(kept);
      const DeviceArray<float> freq(inv_freq);
      KVT_CUDA(compact_cells({p.cells(), p.pool.get(), p.marks.get(), heads_on.get(), kept_on.get(),
                              rerotate ? freq.get() : nullptr, p.count()},
                             nullptr));
      Bf16s got = p.pool.read();
      for (const auto& [at, value] : turned) {
        CHECK(std::abs(__bfloat162float(got[at]) - value) <= 0.005f * std::abs(value) + 0.02f);
        got[at] = pool[at];
      }
      CHECK(std::memcmp(got.data(), pool.data(), pool.size() * 2) == 0);
      const Floats got_marks = p.marks.read();
      CHECK(std::memcmp(got_marks.data(), marks.data(), marks.size() * 4) == 0);
    }
  }
}

TEST_CASE("1.7 1.8 gates and marks on the device are those of the definition") {
  std::mt19937_64 random(12);
  const uint32_t rows = 45, hidden = 256, heads = 3, group = 4;
  const Bf16s numbers = normal_bf16(&random, size_t{rows} * hidden, 1);
  const Floats x = widened(numbers);
  const DeviceArray<__nv_bfloat16> x_on(numbers);
  const kernels::HeadsView view{x.data(), 1, rows, hidden, 0, hidden, {}};
  const DeviceArray<float> out(size_t{rows} * heads);
  const auto check = [&](const Floats& expected) {  // [heads][rows]
    const Floats got = out.read();
    for (uint32_t h = 0; h < heads; ++h) {
      for (uint32_t row = 0; row < rows; ++row) {
        const float e = expected[h * rows + row];
        CHECK(std::abs(got[row * heads + h] - e) <= 1e-4f * std::abs(e) + 1e-7f);
      }
    }
  };
  Floats expected(size_t{heads} * rows);
  const kernels::FastKvzipWeights fast = kernels::seeded_fastkvzip(heads, group, hidden, 5);
  kernels::score_fastkvzip(fast.gate(), view, kernels::packed_scores(expected, heads, rows));
  const DeviceArray<float> wq(fast.wq), bq(fast.bq), qn(fast.q_norm), wk(fast.wk), kn(fast.k_norm),
      base(fast.k_base), bias(fast.bias);
  KVT_CUDA(fastkvzip_gates({x_on.get(), rows, hidden, heads, group, wq.get(), bq.get(), qn.get(), wk.get(),
                            kn.get(), base.get(), bias.get(), fast.gate().norm_eps, out.get()},
                           nullptr));
  check(expected);
  const kernels::TrimKvWeights trim = kernels::seeded_trimkv(heads, hidden, 64, 6);
  kernels::trimkv_log_beta(trim.gate(), view, kernels::packed_scores(expected, heads, rows));
  const DeviceArray<float> w1(trim.w1), b1(trim.b1), w2(trim.w2), b2(trim.b2);
  KVT_CUDA(trimkv_gates({x_on.get(), rows, hidden, heads, trim.width, w1.get(), b1.get(), w2.get(), b2.get(),
                         static_cast<uint8_t>(trim.gate().activation), out.get()},
                        nullptr));
  check(expected);

  const CellProblem p({16, 2, 64}, {33, 100}, {4, 0}, 13);
  std::vector<MarkScoreHead> of_heads;
  std::vector<uint32_t> positions;
  for (const CellHead& head : p.heads) {
    of_heads.push_back({head, static_cast<uint32_t>(positions.size()), 2});
    for (uint32_t i = 0; i < head.rows; ++i) positions.push_back(3 * i + 1);
  }
  const DeviceArray<MarkScoreHead> heads_on(of_heads);
  const DeviceArray<uint32_t> positions_on(positions);
  const DeviceArray<float> scores(size_t{2} * 100);
  for (const MarkScore kind : {MarkScore::kPlain, MarkScore::kPerRow, MarkScore::kDecayed}) {
    KVT_CUDA(score_marks(
        {p.cells(), heads_on.get(), p.marks.get(), positions_on.get(), scores.get(), 100, 2, 100, 500, kind},
        nullptr));
    const Floats got = scores.read();
    for (uint32_t h = 0; h < 2; ++h) {
      for (uint32_t i = 0; i < p.heads[h].rows; ++i) {
        const float mark = p.host_marks[p.mark_at(p.heads[h], p.heads[h].first + i)];
        const auto age = static_cast<float>(500 - (3 * i + 1));
        const float e = kind == MarkScore::kPlain    ? mark
                        : kind == MarkScore::kPerRow ? mark / age
                                                     : mark * age;
        CHECK(got[h * 100 + i] == (i + 2 >= p.heads[h].rows ? INFINITY : e));
      }
    }
  }
}

TEST_CASE("G-3 attention_rows by head: listed cells, gaps, and columns of their own") {
  for (const CellProblem::Shape& shape : cell_shapes()) {
    CellProblem::Shape by_cell = shape;
    by_cell.listed = true;
    const CellProblem p(by_cell, {90, 1, 300}, {0, 0, 0}, 14);
    const uint32_t group = 4, dim = shape.dim, kv_heads = 3;
    std::mt19937_64 random(15);
    const Bf16s numbers = normal_bf16(&random, size_t{2} * kv_heads * group * dim, 1);
    const Floats q = widened(numbers);
    const DeviceArray<__nv_bfloat16> q_on(numbers);
    const DeviceArray<__nv_bfloat16> out(Bf16s(numbers.size(), __float2bfloat16(NAN)));
    std::vector<QueryRow> list;
    for (uint32_t h = 0; h < kv_heads; ++h) {
      const CellHead& head = p.heads[h];
      list.push_back({0, head.table, head.rows, h, head.column});
      list.push_back(
          {1, head.table, head.rows - head.rows / 2, h, head.column, head.rows / 4, head.rows / 2});
    }
    const DeviceArray<QueryRow> list_on(list);
    KVT_CUDA(attention_rows({p.pool.get(), p.tables_on.get(), list_on.get(), q_on.get(), out.get(), 0.125f,
                             static_cast<uint32_t>(list.size()), kv_heads * group, kv_heads, dim, shape.page,
                             shape.columns, true, true},
                            nullptr));
    std::vector<double> expected(numbers.size());
    for (const QueryRow& row : list) {
      for (uint32_t g = 0; g < group; ++g) {
        const size_t at = (size_t{row.row} * kv_heads + row.head) * group * dim + size_t{g} * dim;
        double sum = 0;
        std::vector<double> value(dim, 0.0);
        for (uint32_t i = 0; i < row.cells; ++i) {
          const uint32_t cell = i < row.sinks ? i : i + row.gap;
          double logit = 0;
          for (uint32_t c = 0; c < dim; ++c)
            logit += double{q[at + c]} * double{p.keys[row.head][cell * dim + c]};
          const double weight = std::exp(logit * 0.125);
          sum += weight;
          for (uint32_t c = 0; c < dim; ++c) value[c] += weight * double{p.values[row.head][cell * dim + c]};
        }
        for (uint32_t c = 0; c < dim; ++c) expected[at + c] = value[c] / sum;
      }
    }
    CHECK(largest_error(out, expected, dim) < 0.01);
  }
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
