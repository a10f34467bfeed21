// The time to price one step. A simulated run prices a million steps, so pure decode must take less than 150
// ns. Each benchmark reports the last price, so that a fast wrong answer shows.

#include <benchmark/benchmark.h>

#include "models/catalog/catalog.h"
#include "models/cost/roofline_cost.h"
#include "models/cost_tables/cost_tables.h"
#include "models/cost_tables/table_cost.h"

namespace kvtwin {
namespace {

// Kernel times as closed forms on the grid of real profiles: the benchmark needs no outside data.
CostTables synthetic_tables() {
  CostTables t;
  for (Curve& curve : t.dense) {
    for (uint32_t n = 1; n <= 2048; n = n < 16 ? n + 1 : n + 16)
      curve.at.push_back(n), curve.us.push_back(1 + 0.01 * n);
  }
  for (Curve* curve : {&t.lm_head, &t.sampler}) {
    for (uint32_t n = 1; n <= 256; n *= 2) curve->at.push_back(n), curve->us.push_back(100 + n);
  }
  AttentionGrid& g = t.attention;
  std::vector<uint32_t> contexts, chunk_contexts = {0};
  for (uint32_t n = 16; n <= 16384; n *= 2) contexts.push_back(n), chunk_contexts.push_back(n);
  const auto curve = [](const std::vector<uint32_t>& at, double from, double slope) {
    Curve out{at, {}};
    for (const uint32_t x : at) out.us.push_back(from + slope * x);
    return out;
  };
  for (uint32_t n = 16; n <= 2048; n *= 2) g.chunk.push_back(n);
  for (uint32_t n = 1; n <= 256; n *= 2) g.decodes.push_back(n);
  g.decodes_mixed.assign(g.decodes.begin(), g.decodes.end() - 1);
  for (const uint32_t n : g.decodes) {
    g.pure.push_back(curve(contexts, 5, 0.001 * n));
    if (n > 1) t.skew_pure.push_back({n, 0.3 / n});
  }
  for (const uint32_t c : g.chunk) {
    g.prefill.push_back(curve(chunk_contexts, 5, 0.001 * c));
    for (const uint32_t n : g.decodes_mixed) {
      ContextCurves curves{chunk_contexts, {}};
      for (const uint32_t k : chunk_contexts)
        curves.by_context.push_back(curve(contexts, 6 + 0.001 * c * k, 0.001 * n));
      g.mixed.push_back(std::move(curves));
    }
    t.skew_chunk.push_back(c);
    t.skew_mixed.push_back({{2, 0.9}, {16, 0.3}, {128, 0.01}});
  }
  return t;
}

enum class Load { kDecode, kMixed };

StepShape shape_at(uint32_t i, Load load, ChunkShape* chunks) {
  StepShape s;
  s.decodes = 1 + i * 7 % 200;
  s.decode_context_sum = uint64_t{s.decodes} * (100 + i * 13 % 3000);
  s.decode_context_max = 4000;
  s.tokens = s.tokens_padded = s.logits_rows = s.decodes;
  if (load == Load::kMixed) {
    chunks[0] = {64 + i * 11 % 1000, i * 17 % 5000}, chunks[1] = {32, 0};
    s.chunks = {chunks, 2};
    s.tokens += chunks[0].tokens + chunks[1].tokens, s.tokens_padded = s.tokens;
  }
  return s;
}

void price(benchmark::State& state, CostModel& model, Load load) {
  uint32_t i = 0;
  ChunkShape chunks[2];
  // Fill the memoised prices.
  for (uint32_t j = 0; j < 5000; ++j) (void)model.step(shape_at(j, load, chunks));
  Ticks sum = 0;
  for (auto _ : state) {
    sum += model.step(shape_at(i++ % 5000, load, chunks)).device;
    benchmark::DoNotOptimize(sum);
  }
  state.counters["last_us"] =
      static_cast<double>(model.step(shape_at(4999, load, chunks)).device) / kTicksPerNs / 1e3;
}

void table(benchmark::State& state, Load load) {
  const auto llm = Catalog().llm("llama-3.1-8b");
  auto model =
      llm ? TableCost::make(synthetic_tables(), *llm, 1, 128, {}, {}) : tl::unexpected<Error>(llm.error());
  if (!model) return state.SkipWithError(model.error().text().c_str());
  price(state, **model, load);
}

void roofline(benchmark::State& state, Load load) {
  const auto llm = Catalog().llm("llama-3.1-8b");
  const auto device = Catalog().device("h200");
  if (!llm || !device) return state.SkipWithError("the catalog is not where this build came from");
  RooflineCost model(*llm, *device, 1, {});
  price(state, model, load);
}

BENCHMARK_CAPTURE(table, decode, Load::kDecode);
BENCHMARK_CAPTURE(table, mixed, Load::kMixed);
BENCHMARK_CAPTURE(roofline, decode, Load::kDecode);
BENCHMARK_CAPTURE(roofline, mixed, Load::kMixed);

}  // namespace
}  // namespace kvtwin

BENCHMARK_MAIN();
