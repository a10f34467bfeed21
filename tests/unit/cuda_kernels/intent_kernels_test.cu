// IntentKV's rule on the device compared with its definition: scores within fp32's rounding of the same bf16
// keys, means of query tokens to the bit.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "kernels/scoring/cuda/intent_residual_cuda.h"
#include "kernels/scoring/cuda/score_intent_cuda.h"
#include "kernels/scoring/score_intent.h"
#include "kernels/select/select.h"
#include "tests/support/gpu_main.h"
#include "tests/unit/cuda_kernels/kv_entry_problem.cuh"

namespace kvtwin::test {
namespace {

constexpr uint32_t kLayers = 3, kKvHeads = 2;

// The heads of all layers, all with the same rows, and a session's memory.
struct IntentProblem {
  KvEntryProblem kv_entries;
  uint32_t group, rows;
  float temperature;
  std::vector<RowRange> forced;
  Floats memory;
  DeviceArray<RowRange> forced_on;
  DeviceArray<float> memory_on;

  IntentProblem(const KvEntryProblem::Shape& shape, uint32_t rows_each, uint32_t g, float t,
                std::vector<RowRange> ranges, uint64_t seed)
      : kv_entries(shape, std::vector<uint32_t>(kLayers * kKvHeads, rows_each),
                   std::vector<uint32_t>(kLayers * kKvHeads, seed % 20), seed),
        group(g),
        rows(rows_each),
        temperature(t),
        forced(std::move(ranges)),
        memory(size_t{kLayers} * query_heads() * shape.dim) {
    std::mt19937_64 random(seed + 1);
    std::normal_distribution<float> normal;
    Floats mean(memory.size());
    for (float& x : mean) x = normal(random);
    kernels::intent_forget(shape.dim, mean, memory);
    send();
  }
  void send() {
    forced_on = DeviceArray<RowRange>(forced.empty() ? std::vector<RowRange>(1) : forced);
    memory_on = DeviceArray<float>(memory);
  }
  uint32_t query_heads() const { return kKvHeads * group; }
  bool is_forced(uint32_t row) const {
    return std::any_of(forced.begin(), forced.end(),
                       [&](const RowRange& r) { return r.begin <= row && row < r.end; });
  }
  IntentScoreArgs args() const {
    IntentScoreArgs out;
    out.kv_entries = kv_entries.kv_entries(), out.heads = kv_entries.heads_on.get();
    out.forced = forced_on.get(), out.forced_count = static_cast<uint32_t>(forced.size());
    out.memory = memory_on.get();
    out.scale = 1 / (std::sqrt(static_cast<float>(kv_entries.shape.dim)) * temperature);
    out.layers = kLayers, out.query_heads = query_heads(), out.kv_heads = kKvHeads, out.rows = rows;
    return out;
  }
  Floats expected() const {
    const uint32_t dim = kv_entries.shape.dim;
    std::vector<uint32_t> candidates;
    for (uint32_t row = 0; row < rows; ++row) {
      if (!is_forced(row)) candidates.push_back(row);
    }
    const auto count = static_cast<uint32_t>(candidates.size());
    Floats scores(count, 0.0f), out(rows, 0.0f);
    for (uint32_t l = 0; l < kLayers; ++l) {
      Floats keys;
      for (uint32_t h = 0; h < kKvHeads; ++h) {
        const Floats& all = kv_entries.keys[l * kKvHeads + h];
        for (const uint32_t row : candidates)
          keys.insert(keys.end(), all.begin() + size_t{row} * dim, all.begin() + size_t{row + 1} * dim);
      }
      const size_t each = size_t{query_heads()} * dim;
      kernels::IntentSpec spec;
      spec.temperature = temperature;
      kernels::intent_add_layer(spec, kLayers, std::span(memory).subspan(l * each, each), query_heads(),
                                kernels::packed_heads(keys, kKvHeads, count, dim), scores);
    }
    for (uint32_t i = 0; i < count; ++i) out[candidates[i]] = scores[i];
    return out;
  }
  // [copies][rows + 3], the last three of each untouched. `at_once`: layers.
  Floats got(uint32_t copies, uint64_t logits_max, uint32_t at_once) const {
    IntentScoreArgs on = args();
    on.logits_max = logits_max;
    const DeviceArray<float> workspace(Floats(intent_floats(on), NAN));
    on.workspace = workspace.get();
    const uint64_t stride = rows + 3;
    const DeviceArray<float> scores(Floats(copies * stride, NAN));
    for (uint32_t first = 0; first < kLayers; first += at_once)
      KVT_CUDA(intent_layers(on, first, std::min(at_once, kLayers - first), nullptr));
    KVT_CUDA(intent_scores(on, 1, false, scores.get(), stride, copies, nullptr));
    return scores.read();
  }
  // Rows whose scores differ by more than twice the bound are in the definition's order.
  void check_retained(const Floats& scores, const Floats& wanted) const {
    std::vector<uint32_t> stay;
    for (uint32_t row = 0; row < rows; ++row) {
      if (is_forced(row)) stay.push_back(row);
    }
    const auto candidates = rows - static_cast<uint32_t>(stay.size());
    if (candidates < 2) return;
    uint64_t nan = 0;
    const uint32_t keep = candidates / 3 + 1;
    const kernels::RowSet ours = kernels::select_rows({scores.data(), rows}, stay, keep, &nan),
                          theirs = kernels::select_rows(wanted, stay, keep, &nan);
    CHECK(nan == 0);
    CHECK(ours.size() == theirs.size());
    float last = INFINITY;
    for (const uint32_t row : theirs) last = is_forced(row) ? last : std::min(last, wanted[row]);
    const double largest = double{*std::max_element(wanted.begin(), wanted.end())};
    std::vector<uint32_t> differ;
    std::set_symmetric_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                                  std::back_inserter(differ));
    for (const uint32_t row : differ)
      CHECK(std::abs(double{wanted[row]} - double{last}) <= 2 * kScoreError * largest);
  }
};

std::vector<std::vector<RowRange>> forced_of(uint32_t rows) {
  if (rows < 15) return {{}, {{0, rows}}};
  return {{}, {{0, 4}, {rows / 2, rows / 2 + 3}, {rows - 2, rows}}, {{0, rows}}, {{rows / 3, rows}}};
}

TEST_CASE("3.4 intent rule on the device equals the definition") {
  double worst = 0;
  for (const KvEntryProblem::Shape& shape : table_shapes()) {
    if (shape.page > 32) continue;
    for (const uint32_t rows : {1u, 15u, 16u, 17u, 256u, 2561u}) {
      for (const uint32_t group : {1u, 2u, 4u, 5u, 8u, 11u}) {
        if (rows > 300 && group > 4 && group != 8) continue;
        const auto ranges = forced_of(rows);
        const std::vector<RowRange>& forced = ranges[(group + rows) % ranges.size()];
        const float temperature = group % 2 == 0 ? 1.0f : 0.1f;  // a flat softmax, and a peaked one
        const IntentProblem p(shape, rows, group, temperature, forced, rows + group);
        const uint32_t copies = group == 2 ? 70 : 1;
        const Floats expected = p.expected(), got = p.got(copies, 1 << 20, kLayers);
        CAPTURE(rows);
        CAPTURE(group);
        CAPTURE(shape.page);
        for (uint32_t c = 0; c < copies; ++c) {
          const float* const row = got.data() + size_t{c} * (rows + 3);
          const double error = off(row, expected);
          CHECK(error < kScoreError);
          worst = std::max(worst, error);
          CHECK(std::isnan(row[rows]));
        }
        p.check_retained(got, expected);
      }
    }
  }
  MESSAGE("largest error of a score, of the largest: " << worst);
}

TEST_CASE("3.4 intent rule: neither workspace size nor layer-by-layer launches change a bit") {
  const IntentProblem p({16, 6, 128, true}, 700, 4, 1, {{0, 16}, {650, 700}}, 8);
  const Floats all = p.got(2, 1 << 20, kLayers);
  for (const uint64_t logits_max : {1u, 8u * 700u, 2 * 8u * 700u + 5}) {
    for (const uint32_t at_once : {1u, 2u, 3u}) {
      const Floats got = p.got(2, logits_max, at_once);
      CHECK(std::memcmp(got.data(), all.data(), all.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("3.4 intent rule: the best of two turns is the larger of their scores, times their factors") {
  const IntentProblem one({16, 6, 64}, 300, 4, 0.1f, {{0, 10}}, 9);
  IntentProblem two({16, 6, 64}, 300, 4, 0.1f, {{0, 10}}, 9);
  for (float& x : two.memory) x = -x;
  two.send();
  const Floats of_one = one.got(2, 1 << 20, kLayers), of_two = two.got(2, 1 << 20, kLayers);
  const DeviceArray<float> scores(Floats(2 * 303, NAN));
  const IntentProblem* const turns[] = {&one, &two};
  for (const IntentProblem* turn : turns) {
    IntentScoreArgs args = turn->args();
    const DeviceArray<float> workspace(Floats(intent_floats(args), NAN));
    args.workspace = workspace.get();
    KVT_CUDA(intent_layers(args, 0, kLayers, nullptr));
    const bool later = turn == &two;
    KVT_CUDA(intent_scores(args, later ? 1.0f : 0.9f, later, scores.get(), 303, 2, nullptr));
  }
  const Floats got = scores.read();
  uint32_t from_one = 0, from_two = 0;
  for (uint32_t row = 0; row < 300; ++row) {
    const float old = 0.9f * of_one[row];
    CHECK(got[row] == std::max(old, of_two[row]));
    CHECK(got[303 + row] == got[row]);
    ++(old > of_two[row] ? from_one : from_two);
  }
  CHECK(from_one > 20);
  CHECK(from_two > 20);
}

// A head with a last layer that is not zero. Initial weights have zeros there.
kernels::IntentResidual drawn_residual(uint32_t dim, bool cross_attention) {
  kernels::IntentResidual out = kernels::make_intent_residual(dim, 5);
  std::mt19937_64 random(9);
  std::normal_distribution<float> normal;
  for (float& x : out.w2) x = normal(random);
  out.b2 = 0.25f, out.gain = 0.75f, out.cross_attention = cross_attention;
  return out;
}

// Scores of the rule and the residual by the definitions; forced rows have 0.
Floats corrected_by_definition(const IntentProblem& p, const kernels::IntentResidual& head, RowRange span,
                               kernels::RuleNorm norm) {
  const uint32_t dim = p.kv_entries.shape.dim;
  const size_t each = size_t{p.query_heads()} * dim;
  Floats kbar(size_t{p.rows} * dim, 0.0f), mbar(dim, 0.0f), of_span, candidates, rule;
  for (uint32_t l = 0; l < kLayers; ++l) {
    Floats keys;
    for (uint32_t h = 0; h < kKvHeads; ++h)
      keys.insert(keys.end(), p.kv_entries.keys[l * kKvHeads + h].begin(),
                  p.kv_entries.keys[l * kKvHeads + h].end());
    kernels::intent_add_keys(kLayers, kernels::packed_heads(keys, kKvHeads, p.rows, dim), kbar);
    kernels::intent_add_memory(kLayers, p.query_heads(), std::span(p.memory).subspan(l * each, each), mbar);
  }
  const Floats all = p.expected();
  for (uint32_t row = 0; row < p.rows; ++row) {
    const auto from = kbar.begin() + size_t{row} * dim;
    if (row >= span.begin && row < span.end) of_span.insert(of_span.end(), from, from + dim);
    if (!p.is_forced(row)) candidates.insert(candidates.end(), from, from + dim), rule.push_back(all[row]);
  }
  Floats f(rule.size(), 0.0f), out(p.rows, 0.0f);
  kernels::intent_corrections(head, candidates, mbar, of_span, f);
  kernels::intent_normalise(norm, rule);
  kernels::intent_correct(head, f, rule);
  for (uint32_t row = 0, next = 0; row < p.rows; ++row) {
    if (!p.is_forced(row)) out[row] = rule[next++];
  }
  return out;
}

Floats corrected_on_device(const IntentProblem& p, const kernels::IntentResidual& head, RowRange span,
                           kernels::RuleNorm norm, uint32_t copies, uint32_t at_once) {
  IntentResidualArgs args;
  args.rule = p.args();
  Floats mbar(p.kv_entries.shape.dim, 0.0f);
  const size_t each = size_t{p.query_heads()} * mbar.size();
  for (uint32_t l = 0; l < kLayers; ++l)
    kernels::intent_add_memory(kLayers, p.query_heads(), std::span(p.memory).subspan(l * each, each), mbar);
  const DeviceArray<float> weights(intent_residual_weights(head)), mbar_on(mbar);
  args.weights = weights.get(), args.mbar = mbar_on.get(), args.b2 = head.b2, args.gain = head.gain;
  args.cross_attention = head.cross_attention, args.norm = norm;
  args.span_begin = span.begin, args.span_end = span.end;
  for (uint32_t row = 0; row < p.rows; ++row) args.candidates += p.is_forced(row) ? 0 : 1;
  const DeviceArray<float> workspace(Floats(intent_residual_floats(args), NAN));
  args.workspace = workspace.get();
  const uint64_t stride = p.rows + 3;
  const DeviceArray<float> scores(p.got(copies, UINT64_MAX, kLayers));
  for (uint32_t first = 0; first < kLayers; first += at_once)
    KVT_CUDA(intent_key_sums(args, first, std::min(at_once, kLayers - first), nullptr));
  KVT_CUDA(intent_correct_scores(args, scores.get(), stride, copies, nullptr));
  return scores.read();
}

TEST_CASE("3.4 intent residual on the device equals the definition") {
  using kernels::RuleNorm;
  double worst = 0;
  uint64_t seed = 0;
  for (const uint32_t dim : {64u, 128u}) {
    for (const uint32_t rows : {1u, 31u, 500u}) {
      for (const auto& forced : forced_of(rows)) {
        for (const RuleNorm norm : {RuleNorm::kNone, RuleNorm::kTimesCandidates, RuleNorm::kZScore}) {
          const bool cross_attention = ++seed % 4 != 0;
          CAPTURE(dim);
          CAPTURE(rows);
          CAPTURE(cross_attention);
          const IntentProblem p({seed % 2 ? 16u : 1u, kKvHeads, dim, seed % 3 == 0}, rows, 4, 1, forced,
                                seed);
          const RowRange span{rows / 2, seed % 5 == 0 ? rows / 2 : rows};
          const kernels::IntentResidual head = drawn_residual(dim, cross_attention);
          const Floats wanted = corrected_by_definition(p, head, span, norm);
          const Floats got = corrected_on_device(p, head, span, norm, 2, 1 + seed % 3);
          for (uint32_t copy = 0; copy < 2; ++copy) {
            const double error = off(got.data() + size_t{copy} * (rows + 3), wanted);
            worst = std::max(worst, error);
            CHECK(error < 2e-5);
            CHECK(std::isnan(got[size_t{copy} * (rows + 3) + rows]));  // not written
          }
          CHECK(corrected_on_device(p, head, span, norm, 2, kLayers)[0] == got[0]);  // in any number of calls
        }
      }
    }
  }
  MESSAGE("worst error relative to the largest score: " << worst);
}

TEST_CASE("3.4 intent rule: a memory of zeros gives all candidates the same score, and forced rows none") {
  IntentProblem p({16, 6, 64}, 300, 4, 1, {{0, 10}, {290, 300}}, 9);
  std::fill(p.memory.begin(), p.memory.end(), 0.0f);
  p.send();
  const Floats got = p.got(1, 1 << 20, kLayers);
  for (uint32_t row = 0; row < 300; ++row)
    CHECK(std::abs(got[row] - (p.is_forced(row) ? 0.0 : 1.0 / 280)) < 1e-9);
  CHECK(off(got.data(), p.expected()) < kScoreError);
}

TEST_CASE("3.4 intent rule: a NaN key affects every score") {
  IntentProblem p({16, 6, 64}, 300, 2, 1, {{0, 10}}, 9);
  Bf16s pool = p.kv_entries.host_pool;
  const KvEntryHead& head = p.kv_entries.heads[3];
  pool[p.kv_entries.at(head, head.first + 5, 7, false)] = __float2bfloat16(NAN);  // forced: not scored
  p.kv_entries.pool = DeviceArray<__nv_bfloat16>(pool);
  CHECK(off(p.got(1, 1 << 20, kLayers).data(), p.expected()) < kScoreError);
  pool[p.kv_entries.at(head, head.first + 77, 7, false)] = __float2bfloat16(NAN);
  p.kv_entries.pool = DeviceArray<__nv_bfloat16>(pool);
  const Floats got = p.got(1, 1 << 20, kLayers);
  for (uint32_t row = 10; row < 300; ++row) CHECK(std::isnan(got[row]));
}

TEST_CASE("3.4 means of query tokens equal the definition, to the bit") {
  std::mt19937_64 random(5);
  for (const uint32_t rows : {0u, 1u, 7u, 64u, 333u}) {
    const uint32_t heads = 6, dim = 64, width = heads * dim, room = rows + 5;
    const Bf16s numbers = normal_bf16(&random, size_t{kLayers} * room * width, 3);
    const Floats q = widened(numbers);
    const DeviceArray<__nv_bfloat16> q_on(numbers);
    const DeviceArray<float> out(Floats(kLayers * width + 1, NAN));
    KVT_CUDA(intent_means(q_on.get(), uint64_t{room} * width, kLayers, rows, width, out.get(), nullptr));
    const Floats got = out.read();
    CHECK(std::isnan(got.back()));
    for (uint32_t l = 0; l < kLayers; ++l) {
      Floats expected(width);
      kernels::intent_query({q.data() + size_t{l} * room * width, heads, rows, dim, dim, width, {}},
                            expected);
      CHECK(std::memcmp(&got[l * width], expected.data(), width * sizeof(float)) == 0);
    }
  }
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
