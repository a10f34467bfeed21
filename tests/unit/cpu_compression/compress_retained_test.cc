// Which KV entries are retained: each scorer's formula in double precision, from the witness's observations.

#include "kernels/scoring/score_position.h"
#include "tests/unit/cpu_compression/compress_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

using Retained = WitnessCache::Retained;
using Row = WitnessCache::Row;

// Positions that were ranked, and not forced.
std::vector<uint32_t> candidates_of(const Retained& retained) {
  std::vector<uint32_t> out;
  for (const uint32_t p : retained.before) {
    const auto& forced = retained.compression->forced;
    const bool stays = p < retained.compression->begin ||
                       std::any_of(forced.begin(), forced.end(),
                                   [&](const Compression::Forced& f) { return p >= f.begin && p < f.end; });
    if (!stays) out.push_back(p);
  }
  return out;
}

// No dropped candidate ranks above a retained one by more than rounding.
void check_best_stay(const Retained& retained, const std::function<double(uint32_t)>& score) {
  double worst_retained = INFINITY, best_dropped = -INFINITY;
  for (const uint32_t p : candidates_of(retained)) {
    const bool left = std::binary_search(retained.after.begin(), retained.after.end(), p);
    if (left) worst_retained = std::min(worst_retained, score(p));
    if (!left) best_dropped = std::max(best_dropped, score(p));
  }
  CAPTURE(retained.head);
  CHECK(worst_retained >= best_dropped - 1e-6 * (1 + std::fabs(best_dropped)));
}

// Runs `method` on two models; `judge` receives every compression. Returns the number of dropped KV entries.
uint64_t judged(const Method& method, const std::function<void(const LlmSpec&, const Retained&)>& judge,
                const std::function<void(CoreConfig*)>& change = {}) {
  uint64_t dropped = 0;
  std::vector<LlmSpec> models = {tiny_models()[2], tiny_models()[1]};
  for (const LlmSpec& llm : models) {
    RunOf what{.llm = llm, .config = config_of(method, llm), .seed = 3};
    what.client = {
        .sessions = 3, .requests_per_session = 2, .prompt_tokens_max = 60, .output_tokens_max = 16};
    if (change) change(&what.config);
    what.judge = [&](const Retained& retained) { judge(llm, retained); };
    dropped += run_of(what).dropped;
  }
  return dropped;
}

double norm(const double* x, uint32_t dim) {
  double sum = 0;
  for (uint32_t d = 0; d < dim; ++d) sum += x[d] * x[d];
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("T-4 retained: in one chunk a reserved budget retains exactly the top of B N, rounded up") {
  const Method method{"random", "reserved", "ragged", 1};
  const auto whole = [](CoreConfig* config) {
    config->policies.budget_spec.chunk_tokens = 256;
    config->step_tokens_max = 256;
  };
  uint64_t heads = 0;
  const uint64_t dropped = judged(
      method,
      [&](const LlmSpec& llm, const Retained& retained) {
        const BudgetSpec spec = config_of(method, llm).policies.budget_spec;
        std::vector<uint32_t> candidates = candidates_of(retained);
        const uint32_t ranked = retained.tokens > 6 ? retained.tokens - 6 : 0;
        REQUIRE(candidates.size() == ranked);
        std::vector<float> scores(candidates.size());
        kernels::score_random(11, retained.head / llm.kv_heads, retained.head % llm.kv_heads,
                              {ranked, candidates}, kernels::packed_scores(scores, 1, ranked));
        const auto fraction = static_cast<double>(reserved_fractions(spec)[retained.head]) / 4294967296.0;
        const auto count = static_cast<size_t>(std::ceil(fraction * ranked));
        std::vector<std::pair<float, uint32_t>> order;
        for (uint32_t i = 0; i < ranked; ++i) order.emplace_back(-scores[i], candidates[i]);
        std::sort(order.begin(), order.end());
        std::vector<uint32_t> expected;
        for (const uint32_t p : retained.before) {
          if (std::find(candidates.begin(), candidates.end(), p) == candidates.end()) expected.push_back(p);
        }
        for (size_t i = 0; i < count; ++i) expected.push_back(order[i].second);
        std::sort(expected.begin(), expected.end());
        CHECK(retained.after == expected);
        ++heads;
      },
      whole);
  CHECK(dropped > 0);
  CHECK(heads > 50);
}

TEST_CASE("retained: Knorm retains the shortest keys, chunk by chunk") {
  CHECK(judged({"knorm", "ratio", "compact"}, [](const LlmSpec& llm, const Retained& retained) {
          check_best_stay(retained, [&](uint32_t p) {
            return -norm(retained.key(p).data() + retained.head % llm.kv_heads * llm.head_dim, llm.head_dim);
          });
        }) > 0);
}

TEST_CASE("retained: StreamingLLM retains the sinks and the newest, at the prompt's end and later") {
  const Method method{
      "streaming_llm", "uniform", "compact", 0, Clustering::kAdjacent, CompressionTrigger::kDecodeStep};
  CHECK(judged(method, [](const LlmSpec&, const Retained& retained) {
          std::vector<uint32_t> expected;
          const uint32_t kv_entries = std::min(16u, retained.tokens);
          for (uint32_t p = 0; p < retained.tokens; ++p) {
            if (p < 2 || p + kv_entries >= retained.tokens + 2) expected.push_back(p);
          }
          CHECK(retained.after == expected);
        }) > 0);
}

TEST_CASE("retained: H2O retains the entries with most attention, at the prompt's end and later") {
  for (const char* layout : {"compact", "ragged"}) {
    uint32_t later = 0;
    const Method method{"h2o", "uniform", layout, 1};
    CHECK(judged(method, [&](const LlmSpec&, const Retained& retained) {
            check_best_stay(retained, [&](uint32_t p) { return (*retained.gathered)[p]; });
            later += retained.before.size() != retained.tokens;
          }) > 0);
    CHECK(later > 0);  // some of these rank KV entries again
  }
}

TEST_CASE("retained: each query token adds 1 to the sums of H2O's KV entries, before any is dropped") {
  judged({"h2o", "uniform", "compact"}, [&](const LlmSpec&, const Retained& retained) {
    double sum = 0;
    for (const double x : *retained.gathered) sum += x;
    CHECK(std::fabs(sum - retained.tokens) < 1e-9 * retained.tokens);
  });
}

TEST_CASE(
    "retained: TOVA retains the entries that the newest token attends to, the same for all heads of a "
    "layer") {
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> of_layer;
  CHECK(judged({"tova", "uniform", "compact", 0, Clustering::kAdjacent, CompressionTrigger::kDecodeStep},
               [&](const LlmSpec& llm, const Retained& retained) {
                 const uint32_t layer = retained.head / llm.kv_heads;
                 check_best_stay(retained, [&](uint32_t p) {
                   double sum = 0;
                   for (uint32_t h = 0; h < llm.kv_heads; ++h) {
                     for (const Row& row : retained.recent->back()[layer * llm.kv_heads + h]) sum += row[p];
                   }
                   return sum / llm.query_heads;
                 });
                 if (retained.head % llm.kv_heads == 0) {
                   of_layer[{raw(retained.request), layer}] = retained.after;
                 } else {
                   CHECK(of_layer[{raw(retained.request), layer}] == retained.after);
                 }
               }) > 0);
}

TEST_CASE(
    "retained: SnapKV retains the smoothed best entries of the last queries; prompts in chunks or whole") {
  for (const uint32_t step : {64u, 7u}) {
    CHECK(judged(
              {"snapkv", "uniform", "compact"},
              [](const LlmSpec&, const Retained& retained) {
                const auto rows = static_cast<uint32_t>(retained.recent->size());
                const uint32_t n = retained.tokens - rows;  // before the window
                const auto u = [&](size_t g, int64_t p) {
                  if (p < 0 || p >= int64_t{n}) return 0.0;
                  double sum = 0;
                  for (const auto& row : *retained.recent)
                    sum += row[retained.head][g][static_cast<size_t>(p)];
                  return sum / rows;
                };
                check_best_stay(retained, [&](uint32_t p) {
                  if (p >= n) return 1e9;  // the window is retained
                  double sum = 0;
                  const size_t group = retained.recent->back()[retained.head].size();
                  for (size_t g = 0; g < group; ++g) {
                    for (int64_t near = int64_t{p} - 2; near <= int64_t{p} + 2; ++near) sum += u(g, near) / 5;
                  }
                  return sum / static_cast<double>(group);
                });
              },
              [&](CoreConfig* config) { config->step_tokens_max = step; }) > 0);
  }
}

TEST_CASE("retained: AdaKV divides a layer's KV entries, and no head gets less than its floor") {
  uint64_t uneven = 0;
  const Method method{"snapkv", "ada", "ragged", 1};
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> sums;
  CHECK(judged(method, [&](const LlmSpec& llm, const Retained& retained) {
          const uint64_t mine =
              retained.after.size() - (retained.before.size() - candidates_of(retained).size());
          uint64_t& sum = sums[{raw(retained.request), retained.head / llm.kv_heads}];
          if (retained.head % llm.kv_heads == 0) sum = 0;
          sum += mine;
          uneven += mine != 10;
          CHECK(mine >= std::min<size_t>(2, candidates_of(retained).size()));  // a fifth of 10
          if (retained.head % llm.kv_heads + 1 == llm.kv_heads) {
            CHECK(sum == llm.kv_heads * std::min<uint64_t>(10, candidates_of(retained).size()));
          }
        }) > 0);
  CHECK(uneven > 0);
}
