// The attention scores of scorers on the device compared with their definitions, within fp32's rounding of
// the same bf16 numbers.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "kernels/scoring/cuda/attention_scores.h"
#include "kernels/scoring/score_h2o.h"
#include "kernels/scoring/score_raas.h"
#include "kernels/scoring/score_window.h"
#include "kernels/select/select.h"
#include "tests/support/gpu_main.h"
#include "tests/unit/cuda_kernels/kv_entry_problem.cuh"

namespace kvtwin::test {
namespace {

// Query tokens of `group` heads for each head of a problem, different for each head, and the entries visible
// to them.
struct AttentionScoreProblem {
  const KvEntryProblem& kv_entries;
  uint32_t group, queries;
  std::vector<AttentionScoreHead> heads;
  std::vector<uint32_t> visible;
  Floats q;  // [count * queries][group][dim]
  DeviceArray<__nv_bfloat16> q_on;
  DeviceArray<AttentionScoreHead> heads_on;
  DeviceArray<uint32_t> visible_on;
  DeviceArray<float> sums;
  DeviceArray<char> workspace;
  AttentionScoreArgs args;

  // Causal: the queries are at the last positions of each head.
  AttentionScoreProblem(const KvEntryProblem& c, uint32_t g, uint32_t w, bool causal, bool keep_window,
                        uint64_t seed)
      : kv_entries(c), group(g), queries(w) {
    std::mt19937_64 random(seed);
    const Bf16s numbers = normal_bf16(&random, size_t{c.count()} * w * g * c.shape.dim, 1.5f);
    q = widened(numbers);
    for (uint32_t h = 0; h < c.count(); ++h) {
      const uint32_t rows = c.heads[h].rows, seen = std::min(w, rows);
      AttentionScoreHead head{c.heads[h], h * w, 0, w, static_cast<uint32_t>(visible.size()), rows};
      for (uint32_t i = 0; i < w; ++i)
        visible.push_back(causal ? rows - seen + std::min(i, seen - 1) + 1 : rows);
      if (keep_window) head.scored = rows - seen;
      heads.push_back(head);
    }
    q_on = DeviceArray<__nv_bfloat16>(numbers);
    heads_on = DeviceArray<AttentionScoreHead>(heads);
    visible_on = DeviceArray<uint32_t>(visible);
    args.kv_entries = c.kv_entries(), args.heads = heads_on.get(), args.q = q_on.get();
    args.visible = visible_on.get(), args.stride = c.rows_max + 5;
    args.scale = 1 / std::sqrt(static_cast<float>(c.shape.dim));
    args.count = c.count(), args.group = g, args.q_stride = g * c.shape.dim;
    args.rows_max = c.rows_max, args.queries_max = w;
    sums = DeviceArray<float>(Floats(size_t{c.count()} * g * args.stride, NAN));
    workspace = DeviceArray<char>(std::vector<char>(attention_score_workspace_bytes(args), 0x7f));
    args.sums = sums.get(), args.workspace = workspace.get();
  }
  // The same data of one head for the definition; positions are row numbers.
  kernels::AttentionScores attention_scores(uint32_t h, const std::vector<uint32_t>& positions) const {
    const uint32_t dim = kv_entries.shape.dim;
    return {{q.data() + size_t{h} * queries * group * dim, group, queries, dim, dim, size_t{group} * dim, {}},
            positions,
            kv_entries.keys_of(h),
            {kv_entries.heads[h].rows, {}},
            {},
            false};
  }
  std::vector<uint32_t> positions(uint32_t h) const {
    std::vector<uint32_t> out;
    for (uint32_t i = 0; i < queries; ++i) out.push_back(visible[heads[h].visible + i] - 1);
    return out;
  }
};

WindowScoreArgs window_args(const kernels::WindowSpec& spec, const AttentionScoreArgs& attention_scores,
                            float* scores, uint64_t stride) {
  WindowScoreArgs out{attention_scores, scores, stride, spec.kernel};
  if (spec.pool == kernels::Pool::kAverage) out.pool = AttentionScorePool::kAverage;
  if (spec.pool == kernels::Pool::kMax) out.pool = AttentionScorePool::kMax;
  if (spec.reduce == kernels::Reduce::kMax) out.reduce = AttentionScoreReduce::kMax;
  if (spec.reduce == kernels::Reduce::kSum) out.reduce = AttentionScoreReduce::kSum;
  out.pool_first = spec.order == kernels::PoolOrder::kPoolThenReduce;
  return out;
}

TEST_CASE("1.3 window scorers on the device equal the definition, in the order of every code base") {
  using enum kernels::WindowCodeBase;
  double worst = 0;
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    for (size_t n = 0; n < kRows.size(); ++n) {
      const KvEntryProblem p(shape, kRows[n], kFirst[n], 20 + n);
      for (const auto code : {kKvpress, kAdaKv, kKvCacheFactory, kTangram, kJudgeQ, kH2oWindow, kFinch}) {
        const kernels::WindowSpec spec = kernels::window_spec(code);
        const uint32_t group = 1 + (n + static_cast<uint32_t>(code)) % 8;
        // With up to eight (query head, token) pairs keys are read once.
        const uint32_t queries = n == 0 ? 1 : n == 3 ? 2 : 5 + 9 * static_cast<uint32_t>(code);
        AttentionScoreProblem attention_scores(p, group, queries, spec.causal && spec.keep_window,
                                               spec.keep_window, 30 + n);
        attention_scores.args.join_logits = spec.order == kernels::PoolOrder::kReduceLogitsFirst;
        attention_scores.args.weigh_visible = spec.weigh_visible;
        const uint64_t stride = p.rows_max;
        const DeviceArray<float> scores(Floats(p.count() * stride, NAN));
        KVT_CUDA(compute_attention_scores(attention_scores.args, nullptr));
        KVT_CUDA(
            score_window_entries(window_args(spec, attention_scores.args, scores.get(), stride), nullptr));
        const Floats got = scores.read();
        for (uint32_t h = 0; h < p.count(); ++h) {
          const uint32_t rows = p.heads[h].rows;
          Floats expected(rows);
          std::vector<uint32_t> at = attention_scores.positions(h);
          // The definition's window: rows from the first query's position on.
          if (!spec.causal) std::iota(at.begin(), at.end(), rows > queries ? rows - queries : 0);
          kernels::score_window(
              spec, attention_scores.attention_scores(h, spec.keep_window ? at : std::vector<uint32_t>{}),
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

TEST_CASE("1.5 TOVA: the mean over all query heads of a layer") {
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    const KvEntryProblem p(shape, {1300, 1300, 1300}, {0, 3, 40}, 7);
    const uint32_t rows = 1300, group = 4, dim = shape.dim;
    const uint64_t stride = rows;
    const DeviceArray<float> scores(Floats(3 * stride, NAN));
    const AttentionScoreProblem attention_scores(p, group, 1, true, true, 8);
    KVT_CUDA(compute_attention_scores(attention_scores.args, nullptr));
    KVT_CUDA(score_layer_entries({attention_scores.args, scores.get(), stride, 3}, nullptr));
    const Floats got = scores.read();
    Floats keys, expected(3 * rows);
    for (uint32_t h = 0; h < 3; ++h) keys.insert(keys.end(), p.keys[h].begin(), p.keys[h].end());
    const std::vector<uint32_t> at = {rows - 1};
    const kernels::AttentionScores all{{attention_scores.q.data(), 3 * group, 1, dim, dim, 0, {}},
                                       at,
                                       kernels::packed_heads(keys, 3, rows, dim),
                                       {rows, {}},
                                       {},
                                       false};
    kernels::score_tova(all, kernels::packed_scores(expected, 3, rows));
    CHECK(off(got.data(), expected) < kScoreError);
  }
}

TEST_CASE("1.2 1.7 few query tokens: sums, weighted or not, and the largest, equal those of many tokens") {
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    const KvEntryProblem p(shape, {700, 1, 1023, 513}, {0, 3, 40, 8}, 27);
    for (const auto& [group, queries] : {std::pair{1u, 8u}, {2u, 3u}, {3u, 2u}, {8u, 1u}, {5u, 1u}}) {
      for (const int kind : {0, 1, 2}) {
        // The definition of many tokens: the same query tokens and 24 more, which attend to nothing.
        AttentionScoreProblem few(p, group, queries, true, false, 28);
        AttentionScoreArgs many = few.args;
        std::vector<AttentionScoreHead> heads = few.heads;
        std::vector<uint32_t> visible;
        Bf16s q;
        for (uint32_t h = 0; h < p.count(); ++h) {
          const size_t each = size_t{queries} * group * shape.dim;
          for (uint32_t i = 0; i < queries; ++i) visible.push_back(few.visible[h * queries + i]);
          for (size_t i = 0; i < each; ++i) q.push_back(__float2bfloat16(few.q[h * each + i]));
          heads[h].q_row = h * (queries + 24), heads[h].visible = h * (queries + 24);
          heads[h].queries = queries;
          visible.resize((h + 1) * (queries + 24), 0);
          q.resize((h + 1) * size_t{queries + 24} * group * shape.dim, __float2bfloat16(0));
        }
        const DeviceArray<AttentionScoreHead> heads_on(heads);
        const DeviceArray<uint32_t> visible_on(visible);
        const DeviceArray<__nv_bfloat16> q_on(q);
        many.heads = heads_on.get(), many.visible = visible_on.get(), many.q = q_on.get();
        many.queries_max = queries + 24;
        const DeviceArray<char> workspace(attention_score_workspace_bytes(many));
        const DeviceArray<float> sums(Floats(size_t{p.count()} * group * many.stride, NAN));
        many.workspace = workspace.get(), many.sums = sums.get();
        few.args.weigh_visible = many.weigh_visible = kind == 1;
        few.args.largest = many.largest = kind == 2;
        KVT_CUDA(compute_attention_scores(few.args, nullptr));
        KVT_CUDA(compute_attention_scores(many, nullptr));
        const Floats a = few.sums.read(), b = sums.read();
        for (uint32_t h = 0; h < p.count(); ++h) {
          for (uint32_t g = 0; g < group; ++g) {
            const float* const row = a.data() + (size_t{h} * group + g) * many.stride;
            const float* const other = b.data() + (size_t{h} * group + g) * many.stride;
            CHECK(off(row, Floats(other, other + p.heads[h].rows)) < kScoreError);
            CHECK(std::isnan(row[p.heads[h].rows]));
          }
        }
      }
    }
  }
}

// 200 query tokens attend to few keys: CTAs share the keys.
TEST_CASE("1.2 H2O: sums grow by the attention of a chunk of 37 or of 200 tokens") {
  std::vector<std::pair<KvEntryProblem::Shape, uint32_t>> cases;
  for (const KvEntryProblem::Shape& shape : table_shapes())
    cases.insert(cases.end(), {{shape, 37}, {shape, 200}});
  for (const auto& [shape, queries] : cases) {
    CAPTURE(queries);
    const KvEntryProblem p(shape, {300, 300, 300}, {0, 3, 40}, 7);
    const uint32_t rows = 300, group = 4;
    const AttentionScoreProblem attention_scores(p, group, queries, true, false, 9);
    KVT_CUDA(compute_attention_scores(attention_scores.args, nullptr));
    KVT_CUDA(gather_state({attention_scores.args, p.scorer_state.get()}, nullptr));
    const Floats got = p.scorer_state.read();
    for (uint32_t h = 0; h < 3; ++h) {
      Floats expected(rows), mine(rows);
      for (uint32_t c = 0; c < rows; ++c) {
        expected[c] = p.host_state[p.state_at(p.heads[h], p.heads[h].first + c)];
        mine[c] = got[p.state_at(p.heads[h], p.heads[h].first + c)];
      }
      const std::vector<uint32_t> at = attention_scores.positions(h);
      kernels::h2o_accumulate(attention_scores.attention_scores(h, at),
                              kernels::packed_scores(expected, 1, rows));
      CHECK(off(mine.data(), expected) < kScoreError);
    }
  }
}

TEST_CASE(
    "1.9 RaaS: entries with more than alpha are stamped; a prompt's entries score by the attention that they "
    "get") {
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    const KvEntryProblem p(shape, {300, 300, 300}, {0, 3, 40}, 7);
    const uint32_t rows = 300, group = 4;
    const uint64_t stride = rows;
    const DeviceArray<float> scores(Floats(3 * stride, NAN));
    const AttentionScoreProblem attention_scores(p, group, 1, true, false, 10);
    AttentionScoreArgs args = attention_scores.args;
    args.scale = 1;
    const float alpha = 1e-3f;
    KVT_CUDA(cudaMemcpy(p.scorer_state.get(), p.host_state.data(), p.scorer_state.bytes(),
                        cudaMemcpyHostToDevice));
    KVT_CUDA(compute_attention_scores(args, nullptr));
    KVT_CUDA(stamp_entries({args, p.scorer_state.get(), alpha, 77}, nullptr));
    const Floats got = p.scorer_state.read();
    uint32_t stamped = 0;
    for (uint32_t h = 0; h < 3; ++h) {
      Floats attention(rows);
      kernels::RaasSpec spec;
      const std::vector<uint32_t> at = attention_scores.positions(h);
      const kernels::AttentionScores one = attention_scores.attention_scores(h, at);
      kernels::raas_attention(spec, one.q, one.k, one.k, kernels::packed_scores(attention, 1, rows));
      for (uint32_t c = 0; c < rows; ++c) {
        if (std::abs(attention[c] - alpha) < 1e-3f * alpha) continue;  // rounding may decide
        const size_t state_value = p.state_at(p.heads[h], p.heads[h].first + c);
        CHECK(got[state_value] == (attention[c] > alpha ? 77 : p.host_state[state_value]));
        stamped += attention[c] > alpha;
      }
    }
    CHECK(stamped > 0);
    KVT_CUDA(score_pointed_entries(attention_scores.args, scores.get(), stride, nullptr));
    const Floats pointed = scores.read();
    for (uint32_t h = 0; h < 3; ++h) {
      Floats expected(rows);
      const std::vector<uint32_t> at = attention_scores.positions(h);
      const kernels::AttentionScores one = attention_scores.attention_scores(h, at);
      kernels::score_raas_prompt(one.q, one.k, kernels::packed_scores(expected, 1, rows));
      CHECK(off(pointed.data() + h * stride, expected) < kScoreError);
    }
  }
}

TEST_CASE("1.7 KVzip: the largest probability over tokens and heads") {
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    const KvEntryProblem p(shape, {300, 300, 300}, {0, 3, 40}, 7);
    const uint32_t rows = 300, group = 4;
    const uint64_t stride = rows;
    const DeviceArray<float> scores(Floats(3 * stride, NAN));
    const uint32_t queries = shape.page == 16 ? 100 : 21;
    AttentionScoreProblem attention_scores(p, group, queries, false, false, 11);
    attention_scores.args.largest = true;
    KVT_CUDA(compute_attention_scores(attention_scores.args, nullptr));
    WindowScoreArgs args{attention_scores.args, scores.get(), stride};
    args.reduce = AttentionScoreReduce::kMax;
    KVT_CUDA(score_window_entries(args, nullptr));
    const Floats got = scores.read();
    for (uint32_t h = 0; h < 3; ++h) {
      Floats expected(rows, 0), row;
      const kernels::AttentionScores one = attention_scores.attention_scores(h, {});
      for (uint32_t j = 0; j < group; ++j) {
        for (uint32_t i = 0; i < queries; ++i) {
          kernels::attention_score_row(one, j, i, &row);
          for (uint32_t c = 0; c < rows; ++c) expected[c] = std::max(expected[c], row[c]);
        }
      }
      CHECK(off(got.data() + h * stride, expected) < kScoreError);
    }
  }
}

TEST_CASE(
    "T-5 select_entries: the device's and the definition's scores retain the same rows except at the "
    "boundary") {
  const KvEntryProblem p({16, 1, 128}, {4000, 4000, 3000}, {0, 8, 16}, 5);
  const AttentionScoreProblem attention_scores(p, 4, 32, true, true, 6);
  const kernels::WindowSpec spec = kernels::window_spec(kernels::WindowCodeBase::kAdaKv);
  const DeviceArray<float> scores(Floats(p.count() * size_t{4000}, NAN));
  KVT_CUDA(compute_attention_scores(attention_scores.args, nullptr));
  KVT_CUDA(score_window_entries(window_args(spec, attention_scores.args, scores.get(), 4000), nullptr));
  const Floats got = scores.read();
  uint32_t differ = 0;
  for (uint32_t h = 0; h < p.count(); ++h) {
    const uint32_t rows = p.heads[h].rows, keep = 400;
    Floats expected(rows);
    const std::vector<uint32_t> at = attention_scores.positions(h);
    kernels::score_window(spec, attention_scores.attention_scores(h, at),
                          kernels::packed_scores(expected, 1, rows));
    const Floats mine(got.begin() + h * 4000, got.begin() + h * 4000 + rows);
    const kernels::RowSet a = kernels::select_rows(mine, {}, keep),
                          b = kernels::select_rows(expected, {}, keep);
    float largest = 0, last = INFINITY;
    for (const float x : expected) largest = std::isfinite(x) ? std::max(largest, x) : largest;
    for (const uint32_t row : b) last = std::min(last, expected[row]);
    std::vector<uint32_t> others;
    std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(others));
    // A row whose score differs from that of the last retained one by more than twice the error bound is
    // retained by both or dropped by both.
    for (const uint32_t row : others)
      CHECK(std::abs(expected[row] - last) <= 2 * kScoreError * static_cast<double>(largest));
    differ += static_cast<uint32_t>(others.size());
  }
  MESSAGE(differ << " rows of " << 3 * 400 << " kept differ");
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
