// The small kernels of scores and scorer state: gates from products, state of new KV entries, updates of
// state from attention scores, means, rows for scorers on the host, copies. Bytes of each kernel's bound
// against 4.69 TB/s.

#include "kernels/bench/kv_entry_case.cuh"
#include "kernels/quant/convert_entries.h"
#include "kernels/scoring/cuda/attention_scores.h"
#include "kernels/scoring/cuda/kv_entry_gates.h"
#include "kernels/scoring/cuda/scorer_state.h"
#include "kernels/select/page_choice.h"

namespace kvtwin::test {
namespace {

constexpr uint32_t kKvHeads = 8;

DeviceArray<float> random_floats(size_t count) {
  std::vector<float> out(count);
  std::mt19937 random(3);
  for (float& x : out) x = static_cast<float>(random()) / 4294967296.f - 0.5f;
  return DeviceArray<float>(out);
}

void fastkvzip(benchmark::State& state) {
  FastKvzipArgs args;
  args.rows = static_cast<uint32_t>(state.range(0)), args.heads = kKvHeads, args.group = kGroup;
  const auto products = random_floats(size_t{args.rows} * kGateParts * args.outputs());
  const auto weights = random_floats(kKvHeads * 16 * 16);
  const DeviceArray<float> out(size_t{args.rows} * kKvHeads);
  args.products = products.get(), args.out = out.get();
  args.bq = args.q_norm = args.k_norm = args.k_base = args.bias = weights.get();
  const double seconds = median_of_replays(
      state, 4, [&](uint32_t, cudaStream_t stream) { return fastkvzip_gates(args, stream); });
  report(state, static_cast<double>(products.bytes() + out.bytes()), seconds);
  label_with_digest(state, out);
}

void trimkv(benchmark::State& state) {
  TrimKvArgs args;
  args.rows = static_cast<uint32_t>(state.range(0)), args.heads = kKvHeads, args.width = 512;
  const auto products = random_floats(size_t{args.rows} * kGateParts * args.width);
  const auto weights = random_floats(kKvHeads * args.width);
  const DeviceArray<float> out(size_t{args.rows} * kKvHeads);
  args.products = products.get(), args.out = out.get(), args.b1 = args.w2 = args.b2 = weights.get();
  const double seconds =
      median_of_replays(state, 4, [&](uint32_t, cudaStream_t stream) { return trimkv_gates(args, stream); });
  report(state, static_cast<double>(products.bytes() + out.bytes()), seconds);
  label_with_digest(state, out);
}

// Uses of the attention of eight query rows of four heads: added to scorer state, as stamps, or as RaaS's q .
// K.
enum class Use { kScorerState, kStamps, kPointed };
void score_bench(benchmark::State& state, Use use) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  constexpr uint32_t kQueries = 8;
  const auto q = random_bf16(size_t{c.heads} * kQueries * kGroup * kDim);
  const auto sums = random_floats(size_t{c.heads} * kGroup * c.rows);
  std::vector<AttentionScoreHead> heads;
  for (uint32_t h = 0; h < c.heads; ++h) heads.push_back({c.host[h], h * kQueries, 0, kQueries, 0, c.rows});
  const DeviceArray<AttentionScoreHead> heads_on(heads);
  const DeviceArray<uint32_t> visible(std::vector<uint32_t>(kQueries, c.rows));
  AttentionScoreArgs attention_scores;
  attention_scores.kv_entries = c.kv_entries(), attention_scores.heads = heads_on.get(),
  attention_scores.q = q.get(), attention_scores.visible = visible.get();
  attention_scores.sums = sums.get(), attention_scores.stride = c.rows, attention_scores.scale = 0.088f,
  attention_scores.count = c.heads, attention_scores.group = kGroup;
  attention_scores.q_stride = kGroup * kDim, attention_scores.rows_max = c.rows,
  attention_scores.queries_max = kQueries;
  const StateUpdateArgs scorer_state{attention_scores, c.scorer_state.get(), 0.25f, 7};
  const double seconds = median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) {
    if (use == Use::kPointed) return score_pointed_entries(attention_scores, c.scores.get(), c.rows, stream);
    return use == Use::kScorerState ? gather_state(scorer_state, stream)
                                    : stamp_entries(scorer_state, stream);
  });
  report(state, c.all() * (use == Use::kPointed ? 2 * kDim + 4 : 4 * kGroup + 8), seconds);
  label_with_digest(state, use == Use::kPointed ? c.scores : c.scorer_state);
}

void means(benchmark::State& state) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const DeviceArray<float> out(c.rows);
  const double seconds = median_of_replays(state, 4, [&](uint32_t, cudaStream_t stream) {
    return mean_scores(c.scores.get(), c.rows, c.heads, c.rows, out.get(), stream);
  });
  report(state, (c.all() + c.rows) * 4, seconds);
  label_with_digest(state, out);
}

void read(benchmark::State& state) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const DeviceArray<float> keys(static_cast<size_t>(c.all()) * kDim);
  const ReadEntriesArgs args{c.kv_entries(), c.list.get(), keys.get(), nullptr, c.rows, c.heads, c.rows};
  const double seconds =
      median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) { return read_entries(args, stream); });
  report(state, c.all() * kDim * 6, seconds);
  label_with_digest(state, keys);
}

void new_state(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  std::vector<AppendSlot> slots;
  for (uint32_t i = 0; i < rows * kKvHeads; ++i) slots.push_back({i / kPage, i % kPage});
  std::shuffle(slots.begin(), slots.end(), std::mt19937(4));
  const DeviceArray<AppendSlot> slots_on(slots);
  const auto values = random_floats(slots.size());
  const DeviceArray<float> scorer_state(slots.size());
  const NewStateArgs args{slots_on.get(), values.get(), nullptr, scorer_state.get(), rows, kKvHeads, kPage};
  const double seconds =
      median_of_replays(state, 4, [&](uint32_t, cudaStream_t stream) { return write_state(args, stream); });
  report(state, static_cast<double>(slots.size()) * 16, seconds);
  label_with_digest(state, scorer_state);
}

void copied(benchmark::State& state) {
  constexpr uint32_t kRequests = 32, kKvEntries = 2048;
  const auto source = random_bf16(size_t{kRequests} * kKvEntries * kKvHeads * 2 * kDim);
  const DeviceArray<__nv_bfloat16> target(source.bytes() / 2);
  std::vector<KvEntrySpan> spans;
  for (uint32_t i = 0; i < kRequests; ++i)
    spans.push_back({i * kKvEntries, (kRequests - 1 - i) * kKvEntries, kKvEntries, kBothSides});
  const DeviceArray<KvEntrySpan> spans_on(spans);
  const ConvertArgs args{spans_on.get(), kRequests, Format::kBf16, {kPage, kDim, 32}, kKvHeads, kPage};
  const double seconds = median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) {
    return copy_entries(args, source.get(), target.get(), stream);
  });
  report(state, 2.0 * static_cast<double>(source.bytes()), seconds);
  label_with_digest(state, target);
}

// Storing the queries of a step for the next one: 32 decodes, one layer.
void queries(benchmark::State& state) {
  constexpr uint32_t kRows = 32, kNumbers = kKvHeads * kGroup * kDim;
  const auto q = random_bf16(size_t{kRows} * kNumbers);
  const DeviceArray<__nv_bfloat16> before(size_t{kRows} * kNumbers);
  std::vector<QueryRetained> rows;
  for (uint32_t i = 0; i < kRows; ++i) rows.push_back({i, kRows - 1 - i});
  const DeviceArray<QueryRetained> rows_on(rows);
  const double seconds = median_of_replays(state, 8, [&](uint32_t, cudaStream_t stream) {
    return keep_queries(rows_on.get(), kRows, kNumbers, q.get(), before.get(), stream);
  });
  report(state, 2.0 * static_cast<double>(q.bytes()), seconds);
  label_with_digest(state, before);
}

void rows(benchmark::internal::Benchmark* b) { b->Arg(32)->Arg(8192)->Iterations(9)->UseManualTime(); }
void kv_entries(benchmark::internal::Benchmark* b) { b->Args({256, 8192})->Iterations(7)->UseManualTime(); }
BENCHMARK(fastkvzip)->Apply(rows);
BENCHMARK(trimkv)->Apply(rows);
BENCHMARK(new_state)->Arg(32)->Arg(1 << 18)->Iterations(9)->UseManualTime();
BENCHMARK_CAPTURE(score_bench, scorer_state, Use::kScorerState)->Apply(kv_entries);
BENCHMARK_CAPTURE(score_bench, stamps, Use::kStamps)->Apply(kv_entries);
BENCHMARK_CAPTURE(score_bench, pointed, Use::kPointed)->Apply(kv_entries);
BENCHMARK(means)->Args({256, 32768})->Iterations(9)->UseManualTime();
BENCHMARK(read)->Apply(kv_entries);
BENCHMARK(copied)->Iterations(7)->UseManualTime();
BENCHMARK(queries)->Iterations(9)->UseManualTime();

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
