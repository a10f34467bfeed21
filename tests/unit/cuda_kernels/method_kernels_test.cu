// The kernels of methods that drop KV entries compared with their definitions: scores of keys, of scorer
// state and of gates, selection and compaction, attention over listed KV entries. Copies and selections are
// equal to the bit.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "kernels/attention/attention_rows.h"
#include "kernels/cache_ops/compact_entries.h"
#include "kernels/cache_ops/compact_packed.h"
#include "kernels/scoring/cuda/kv_entry_gates.h"
#include "kernels/scoring/cuda/score_keys_cuda.h"
#include "kernels/scoring/cuda/scorer_state.h"
#include "kernels/scoring/gate_weights.h"
#include "kernels/scoring/score_keys.h"
#include "kernels/select/select.h"
#include "kernels/select/select_entries.h"
#include "tests/support/gpu_main.h"
#include "tests/unit/cuda_kernels/kv_entry_problem.cuh"

namespace kvtwin::test {
namespace {

TEST_CASE("1.5 knorm and keydiff on the device equal the definition") {
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    for (size_t n = 0; n < kRows.size(); ++n) {
      const KvEntryProblem p(shape, kRows[n], kFirst[n], 10 + n);
      const uint64_t stride = p.rows_max + 3;
      const DeviceArray<float> scores(Floats(p.count() * stride, NAN));
      const DeviceArray<float> workspace(keydiff_floats(p.count(), p.rows_max, shape.dim));
      const KeyScoreArgs args{p.kv_entries(), p.heads_on.get(), scores.get(),   stride,
                              p.count(),      p.rows_max,       workspace.get()};
      for (const bool diff : {false, true}) {
        KVT_CUDA(diff ? score_keydiff_entries(args, nullptr) : score_knorm_entries(args, nullptr));
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
struct SelectProblem {
  std::vector<SelectHead> heads;
  std::vector<RowRange> forced;
  std::vector<Floats> scores;
  uint32_t retained = 0, rows_max = 0;

  void add(Floats of_rows, uint32_t keep, const std::vector<RowRange>& ranges) {
    SelectHead head{static_cast<uint32_t>(of_rows.size()), keep, static_cast<uint32_t>(forced.size()),
                    static_cast<uint32_t>(ranges.size()), retained};
    uint32_t stay = keep;
    for (const RowRange& range : ranges) stay += range.end - range.begin;
    retained += std::min(head.rows, stay);
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
    const DeviceArray<uint32_t> retained_on(std::vector<uint32_t>(retained + 1, 0xdeadbeef));
    const DeviceArray<uint32_t> nan_on(std::vector<uint32_t>{0});
    KVT_CUDA(select_entries({scores_on.get(), stride, heads_on.get(), forced_on.get(), retained_on.get(),
                             nan_on.get(), static_cast<uint32_t>(heads.size()), rows_max},
                            nullptr));
    const std::vector<uint32_t> got = retained_on.read();
    uint64_t nan = 0;
    for (size_t h = 0; h < heads.size(); ++h) {
      std::vector<uint32_t> rows;
      for (uint32_t i = 0; i < heads[h].forced_count; ++i) {
        const RowRange& range = forced[heads[h].forced_first + i];
        for (uint32_t row = range.begin; row < range.end; ++row) rows.push_back(row);
      }
      const kernels::RowSet expected = kernels::select_rows(scores[h], rows, heads[h].keep, &nan);
      const auto first = got.begin() + heads[h].retained;
      CAPTURE(h);
      CHECK(std::equal(expected.begin(), expected.end(), first));
    }
    CHECK(got[retained] == 0xdeadbeef);
    CHECK(nan_on.read()[0] == nan);
  }
};

TEST_CASE("G-1 select_entries: the rows that the definition selects, for any scores") {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  // Up to 2,048 candidates are all ranked; of more, a sample decides which. 256 and 512 threads.
  for (const uint32_t size : {1u, 2u, 100u, 1023u, 1024u, 1025u, 2049u, 5000u, 16385u, 60000u}) {
    SelectProblem p;
    for (uint32_t kind = 0; kind < 10; ++kind) {
      Floats scores(size);
      for (uint32_t i = 0; i < size; ++i) {
        float& x = scores[i];
        x = normal(random);
        if (kind == 1) x = static_cast<float>(static_cast<int>(random() % 5));  // ties
        if (kind == 2) x = 1;
        if (kind == 3 && random() % 4 == 0) x = NAN;
        if (kind == 4 && random() % 3 == 0) x = random() % 2 == 0 ? INFINITY : -INFINITY;
        if (kind == 5) x *= 1e-38f;  // subnormals
        if (kind == 6) x = random() % 2 == 0 ? 0.0f : -0.0f;
        if (kind == 7) x = std::abs(x) * 1e-6f + 0.5f;                    // one exponent
        if (kind == 8) x = std::exp(3 * x) * (i % 7 == 0 ? 0.0f : 1.0f);  // many zeros
        if (kind == 9) x = static_cast<float>(i) + x;                     // late rows are best
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
// Short enough for compute-sanitizer: listed at once, by a sample, and without a list, in every size of CTA.
TEST_CASE("G-1 select_entries: small ones of every kind") {
  std::mt19937_64 random(31);
  std::normal_distribution<float> normal;
  for (const uint32_t heads : {3u, 140u}) {
    for (const uint32_t size : {300u, 3000u, 13'000u}) {
      if (heads > 3 && size > 3000) continue;
      SelectProblem p;
      for (uint32_t h = 0; h < heads; ++h) {
        Floats scores(size);
        for (float& x : scores) x = h % 3 == 1 ? static_cast<float>(random() % 3) : normal(random);
        p.add(scores, size / 4, {{0, 4}, {size - 40, size}});
      }
      p.check();
    }
  }
}
TEST_CASE("G-1 select_entries: few heads of many rows, and more rows than allowed") {
  std::mt19937_64 random(30);
  std::normal_distribution<float> normal;
  for (const uint32_t size : {3000u, 140'000u, 500'000u}) {
    SelectProblem p;
    for (uint32_t kind = 0; kind < 4; ++kind) {
      Floats scores(size);
      for (float& x : scores) {
        x = std::exp(2 * normal(random));
        if (kind == 1) x = static_cast<float>(static_cast<int>(4 * x));
        if (kind == 2) x = 1 + 1e-6f * x;
        // Only every 64th row is positive: a sample with that stride contains no other.
        if (kind == 3 && (&x - scores.data()) % 64 != 0) x = -x;
      }
      for (const uint32_t keep : {size / 100, size / 2}) p.add(scores, keep, {{0, 4}, {size - 64, size}});
    }
    p.check();
  }
  SelectArgs args;
  args.count = 1, args.rows_max = (1u << 19) + 1;
  CHECK(select_entries(args, nullptr) == cudaErrorInvalidValue);
}
TEST_CASE("compact_entries: retained rows move in place with their scorer state, and nothing else changes") {
  std::mt19937_64 random(4);
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    if (shape.listed) continue;
    for (const bool rerotate : {false, true}) {
      const KvEntryProblem p(shape, {1, 50, 333, 700, 64}, {0, 7, 16, 3, 100}, 40);
      std::vector<CompactHead> heads;
      std::vector<uint32_t> retained;
      Bf16s pool = p.host_pool;
      Floats scorer_state = p.host_state, inv_freq;
      for (uint32_t i = 0; i < shape.dim / 2; ++i)
        inv_freq.push_back(std::pow(1e4f, -2.f * static_cast<float>(i) / static_cast<float>(shape.dim)));
      std::vector<std::pair<size_t, float>> turned;
      for (uint32_t h = 0; h < p.count(); ++h) {
        const KvEntryHead& head = p.heads[h];
        CompactHead compact{head, head.table, head.first, static_cast<uint32_t>(retained.size()), 0};
        for (uint32_t row = 0; row < head.rows; ++row) {
          if (random() % 3 == 0 && head.rows > 1) continue;
          const uint32_t to = head.first + compact.count, from = head.first + row;
          retained.push_back(row), ++compact.count;
          scorer_state[p.state_at(head, to)] = p.host_state[p.state_at(head, from)];
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
      const DeviceArray<uint32_t> retained_on(retained);
      const DeviceArray<float> freq(inv_freq);
      KVT_CUDA(compact_entries({p.kv_entries(), p.pool.get(), p.scorer_state.get(), heads_on.get(),
                                retained_on.get(), rerotate ? freq.get() : nullptr, p.count()},
                               nullptr));
      Bf16s got = p.pool.read();
      for (const auto& [at, value] : turned) {
        CHECK(std::abs(__bfloat162float(got[at]) - value) <= 0.005f * std::abs(value) + 0.02f);
        got[at] = pool[at];
      }
      CHECK(std::memcmp(got.data(), pool.data(), pool.size() * 2) == 0);
      const Floats got_state = p.scorer_state.read();
      CHECK(std::memcmp(got_state.data(), scorer_state.data(), scorer_state.size() * 4) == 0);
    }
  }
}

TEST_CASE(
    "compact_packed_entries: retained rows move as bytes with their scorer state, and nothing else changes") {
  std::mt19937_64 random(5);
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    if (shape.listed) continue;
    for (const Format format : {Format::kFp8, Format::kInt4, Format::kFp4}) {
      const KvEntryProblem p(shape, {1, 50, 333, 700, 64}, {0, 7, 16, 3, 100}, 41);
      const PageShape page{shape.page, shape.dim, 32};
      const size_t block = page_bytes(format, page), each = token_bytes(format, page);
      std::vector<uint8_t> pool(p.host_state.size() / shape.page * block);
      for (uint8_t& byte : pool) byte = static_cast<uint8_t>(random());
      const std::vector<uint8_t> before = pool;
      Floats scorer_state = p.host_state;
      std::vector<CompactHead> heads;
      std::vector<uint32_t> retained;
      for (const KvEntryHead& head : p.heads) {
        CompactHead compact{head, head.table, head.first, static_cast<uint32_t>(retained.size()), 0};
        for (uint32_t row = 0; row < head.rows; ++row) {
          if (random() % 3 == 0 && head.rows > 1) continue;
          const auto [to, to_slot] = p.place(head, head.first + compact.count);
          const auto [from, from_slot] = p.place(head, head.first + row);
          retained.push_back(row), ++compact.count;
          scorer_state[to * shape.page + to_slot] = p.host_state[from * shape.page + from_slot];
          for (const size_t side : {size_t{0}, block / 2})
            std::memcpy(&pool[to * block + side + to_slot * each],
                        &before[from * block + side + from_slot * each], each);
        }
        heads.push_back(compact);
      }
      const DeviceArray<CompactHead> heads_on(heads);
      const DeviceArray<uint32_t> retained_on(retained);
      const DeviceArray<uint8_t> pool_on(before);
      CompactPackedArgs args;
      args.kv_entries = p.kv_entries(), args.format = format, args.group = 32;
      args.pool = pool_on.get(), args.scorer_state = p.scorer_state.get();
      args.heads = heads_on.get(), args.retained = retained_on.get(), args.count = p.count();
      KVT_CUDA(compact_packed_entries(args, nullptr));
      CHECK(pool_on.read() == pool);
      const Floats got_state = p.scorer_state.read();
      CHECK(std::memcmp(got_state.data(), scorer_state.data(), scorer_state.size() * 4) == 0);
      args.format = Format::kInt2;
      CHECK(compact_packed_entries(args, nullptr) == cudaErrorInvalidValue);
    }
  }
}

// The result of the matrix product: bf16 inputs, and sums that are exact here. [rows][kGateParts][outputs]
Floats gate_products(const Floats& x, uint32_t rows, const Floats& weights, uint32_t hidden) {
  Bf16s parts(kGateParts * weights.size());
  split_gate_weights(weights.data(), weights.size(), parts.data());
  const Floats dequantized = widened(parts);
  const size_t outputs = dequantized.size() / hidden;
  Floats out(rows * outputs);
  for (size_t i = 0; i < out.size(); ++i) {
    double sum = 0;
    for (uint32_t c = 0; c < hidden; ++c)
      sum += double{x[i / outputs * hidden + c]} * double{dequantized[i % outputs * hidden + c]};
    out[i] = static_cast<float>(sum);
  }
  return out;
}

TEST_CASE("1.7 1.8 gates on the device equal the definition") {
  std::mt19937_64 random(12);
  for (const auto& [rows, heads, group] : {std::tuple{45u, 3u, 4u}, {1u, 1u, 1u}, {130u, 8u, 7u}}) {
    const uint32_t hidden = 256;
    const Floats x = widened(normal_bf16(&random, size_t{rows} * hidden, 1));
    const kernels::HeadsView view{x.data(), 1, rows, hidden, 0, hidden, {}};
    const DeviceArray<float> out(Floats(size_t{rows} * heads + 1, NAN));
    const auto check = [&](const Floats& expected) {  // [heads][rows]
      const Floats got = out.read();
      for (uint32_t h = 0; h < heads; ++h) {
        for (uint32_t row = 0; row < rows; ++row) {
          const float e = expected[h * rows + row];
          CHECK(std::abs(got[row * heads + h] - e) <= 1e-4f * std::abs(e) + 1e-7f);
        }
      }
      CHECK(std::isnan(got.back()));
    };
    Floats expected(size_t{heads} * rows);
    const kernels::FastKvzipWeights fast = kernels::seeded_fastkvzip(heads, group, hidden, 5);
    kernels::score_fastkvzip(fast.gate(), view, kernels::packed_scores(expected, heads, rows));
    Floats both = fast.wq;
    both.insert(both.end(), fast.wk.begin(), fast.wk.end());
    const DeviceArray<float> products(gate_products(x, rows, both, hidden));
    const DeviceArray<float> bq(fast.bq), qn(fast.q_norm), kn(fast.k_norm), base(fast.k_base),
        bias(fast.bias);
    KVT_CUDA(fastkvzip_gates({products.get(), rows, heads, group, bq.get(), qn.get(), kn.get(), base.get(),
                              bias.get(), fast.gate().norm_eps, out.get()},
                             nullptr));
    check(expected);
    const kernels::TrimKvWeights trim = kernels::seeded_trimkv(heads, hidden, 64, 6);
    kernels::trimkv_log_beta(trim.gate(), view, kernels::packed_scores(expected, heads, rows));
    const DeviceArray<float> inner(gate_products(x, rows, trim.w1, hidden));
    const DeviceArray<float> b1(trim.b1), w2(trim.w2), b2(trim.b2);
    KVT_CUDA(trimkv_gates({inner.get(), rows, heads, trim.width, b1.get(), w2.get(), b2.get(),
                           static_cast<uint8_t>(trim.gate().activation), out.get()},
                          nullptr));
    check(expected);
  }
}

TEST_CASE("1.2 1.8 1.9 scores of scorer state equal the definition, for any placement of KV entries") {
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    const KvEntryProblem p(shape, {33, 100, 1, 5000, 4094}, {4, 0, 3, 5, 18}, 13);
    const uint64_t stride = p.rows_max + (shape.columns % 2);  // aligned or not
    std::vector<StateScoreHead> of_heads;
    std::vector<uint32_t> positions;
    for (const KvEntryHead& head : p.heads) {
      of_heads.push_back({head, static_cast<uint32_t>(positions.size()), 2});
      for (uint32_t i = 0; i < head.rows; ++i) positions.push_back(3 * i + 1);
    }
    const DeviceArray<StateScoreHead> heads_on(of_heads);
    const DeviceArray<uint32_t> positions_on(positions);
    for (const StateScore kind : {StateScore::kPlain, StateScore::kPerRow, StateScore::kDecayed}) {
      const DeviceArray<float> scores(Floats(p.count() * stride, NAN));
      KVT_CUDA(score_from_state({p.kv_entries(), heads_on.get(), p.scorer_state.get(), positions_on.get(),
                                 scores.get(), stride, p.count(), p.rows_max, 20'000, kind},
                                nullptr));
      const Floats got = scores.read();
      uint32_t problem = 0;
      for (uint32_t h = 0; h < p.count(); ++h) {
        for (uint32_t i = 0; i < stride; ++i) {
          const float x = got[h * stride + i];
          if (i >= p.heads[h].rows) {
            problem += !std::isnan(x);  // not written
            continue;
          }
          const float state_value = p.host_state[p.state_at(p.heads[h], p.heads[h].first + i)];
          const auto age = static_cast<float>(20'000 - (3 * i + 1));
          const float e = kind == StateScore::kPlain    ? state_value
                          : kind == StateScore::kPerRow ? state_value / age
                                                        : state_value * age;
          problem += x != (i + 2 >= p.heads[h].rows ? INFINITY : e);
        }
      }
      CAPTURE(shape.page);
      CHECK(problem == 0);
    }
  }
}

// 40 query tokens per head: windows that slide (with sinks, or without) over a growing gap; token 5 attends
// to no entry, and token 6 to every entry.
std::vector<QueryRow> sliding_rows(const KvEntryProblem& p, uint32_t kv_heads, uint32_t rows) {
  std::vector<QueryRow> list;
  for (uint32_t h = 0; h < kv_heads; ++h) {
    const KvEntryHead& head = p.heads[h];
    for (uint32_t i = 0; i < rows; ++i) {
      QueryRow row{i, head.table, 0, h, head.column};
      const uint32_t end = std::min(head.rows, 20 + 7 * i), window = std::min(end, 33u);
      row.kv_entries = i == 5 ? 0 : i == 6 ? head.rows : window;
      if (i != 5 && i != 6) row.sinks = i % 2 == 0 ? std::min(4u, window) : 0, row.gap = end - window;
      list.push_back(row);
    }
  }
  return list;
}

TEST_CASE(
    "G-3 attention_rows by head: listed KV entries, gaps, and columns of their own, alone and in runs") {
  std::vector<std::pair<KvEntryProblem::Shape, bool>> cases;
  for (const KvEntryProblem::Shape& shape : table_shapes())
    cases.insert(cases.end(), {{shape, false}, {shape, true}});
  for (const auto& [shape, runs] : cases) {
    KvEntryProblem::Shape by_entry = shape;
    by_entry.listed = true;
    const KvEntryProblem p(by_entry, {90, 1, 300}, {0, 0, 0}, 14);
    const uint32_t dim = shape.dim, kv_heads = 3, rows = 40;
    for (const uint32_t group : {1u, 3u, 4u, 7u}) {
      CAPTURE(group);
      CAPTURE(runs);
      std::mt19937_64 random(15);
      const Bf16s numbers = normal_bf16(&random, size_t{rows} * kv_heads * group * dim, 1);
      const Floats q = widened(numbers);
      const DeviceArray<__nv_bfloat16> q_on(numbers);
      const DeviceArray<__nv_bfloat16> out(Bf16s(numbers.size(), __float2bfloat16(NAN)));
      std::vector<QueryRow> list = sliding_rows(p, kv_heads, rows);
      if (group == 3) std::swap(list[3], list[kv_heads * rows - 1]);  // runs of one, and of the rest
      const DeviceArray<QueryRow> list_on(list);
      AttentionRowsArgs args{p.pool.get(),
                             p.tables_on.get(),
                             list_on.get(),
                             q_on.get(),
                             out.get(),
                             0.125f,
                             static_cast<uint32_t>(list.size()),
                             kv_heads * group,
                             kv_heads,
                             dim,
                             shape.page,
                             shape.columns,
                             true,
                             true};
      args.runs = runs;
      KVT_CUDA(attention_rows(args, nullptr));
      std::vector<double> expected(numbers.size());
      for (const QueryRow& row : list) {
        for (uint32_t g = 0; g < group; ++g) {
          const size_t at = (size_t{row.row} * kv_heads + row.head) * group * dim + size_t{g} * dim;
          double sum = 0;
          std::vector<double> value(dim, 0.0);
          for (uint32_t i = 0; i < row.kv_entries; ++i) {
            const uint32_t kv_entry = i < row.sinks ? i : i + row.gap;
            double logit = 0;
            for (uint32_t c = 0; c < dim; ++c)
              logit += double{q[at + c]} * double{p.keys[row.head][kv_entry * dim + c]};
            const double weight = std::exp(logit * 0.125);
            sum += weight;
            for (uint32_t c = 0; c < dim; ++c)
              value[c] += weight * double{p.values[row.head][kv_entry * dim + c]};
          }
          for (uint32_t c = 0; c < dim; ++c) expected[at + c] = sum > 0 ? value[c] / sum : 0;
        }
      }
      CHECK(largest_error(out, expected, dim) < 0.01);
    }
  }
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
