// The kernels of methods that drop KV entries: scores, selection, compaction. Bytes against 4.69 TB/s, and,
// for many query rows, flops against the peak of mma.sync (660 TFLOP/s, docs/design/kernels.md#int2-int4).
// Llama-3.1-8B's heads, all layers of one request or more, at least 32 MB; pages in random order.

#include "kernels/bench/kv_entry_case.cuh"
#include "kernels/cache_ops/compact_entries.h"
#include "kernels/scoring/cuda/attention_scores.h"
#include "kernels/scoring/cuda/intent_residual_cuda.h"
#include "kernels/scoring/cuda/score_intent_cuda.h"
#include "kernels/scoring/cuda/score_keys_cuda.h"
#include "kernels/scoring/cuda/scorer_state.h"
#include "kernels/select/select_entries.h"

namespace kvtwin::test {
namespace {

constexpr double kMmaCeiling = 660e12;

void keys(benchmark::State& state, bool diff) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const DeviceArray<float> workspace(keydiff_floats(c.heads, c.rows, kDim));
  const KeyScoreArgs args{c.kv_entries(), c.list.get(), c.scores.get(), c.rows,
                          c.heads,        c.rows,       workspace.get()};
  const double seconds = median_of_replays(state, 4, [&](uint32_t, cudaStream_t stream) {
    return diff ? score_keydiff_entries(args, stream) : score_knorm_entries(args, stream);
  });
  report(state, c.all() * ((diff ? 4 : 2) * kDim + 4), seconds);
  label_with_digest(state, c.scores);
}

void attention_scores(benchmark::State& state) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const auto queries = static_cast<uint32_t>(state.range(2));
  const DeviceArray<__nv_bfloat16> q = random_bf16(size_t{c.heads} * queries * kGroup * kDim);
  std::vector<AttentionScoreHead> heads;
  std::vector<uint32_t> visible;
  for (uint32_t h = 0; h < c.heads; ++h) {
    heads.push_back(
        {c.host[h], h * queries, 0, queries, static_cast<uint32_t>(visible.size()), c.rows - queries});
    for (uint32_t i = 0; i < queries; ++i) visible.push_back(c.rows - queries + i + 1);
  }
  const DeviceArray<AttentionScoreHead> heads_on(heads);
  const DeviceArray<uint32_t> visible_on(visible);
  AttentionScoreArgs args;
  args.kv_entries = c.kv_entries(), args.heads = heads_on.get(), args.q = q.get(),
  args.visible = visible_on.get();
  args.stride = c.rows, args.scale = 0.088f, args.count = c.heads, args.group = kGroup;
  args.q_stride = kGroup * kDim, args.rows_max = c.rows, args.queries_max = queries;
  const DeviceArray<float> sums(size_t{c.heads} * kGroup * c.rows);
  const DeviceArray<char> workspace(attention_score_workspace_bytes(args));
  args.sums = sums.get(), args.workspace = workspace.get();
  WindowScoreArgs score{
      args, c.scores.get(), c.rows, 5, AttentionScorePool::kAverage, AttentionScoreReduce::kMean, true};
  const double seconds = median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) {
    const cudaError_t error = compute_attention_scores(args, stream);
    return error != cudaSuccess ? error : score_window_entries(score, stream);
  });
  // Keys once if there are few enough query rows to store their logits, else twice; sums written and read;
  // scores.
  const double passes = queries * kGroup <= 8 ? 1 : 2;
  report(state, c.all() * (passes * 2 * kDim + 2 * 4 * kGroup + 4), seconds);
  const double flops = 2 * c.all() * queries * kGroup * 2 * kDim;
  state.counters["TFLOPs"] = flops / seconds / 1e12;
  state.counters["pct_mma"] = flops / seconds / kMmaCeiling * 100;
  label_with_digest(state, c.scores);
}

void select(benchmark::State& state) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const uint32_t keep = c.rows / 4;
  std::vector<SelectHead> heads;
  for (uint32_t h = 0; h < c.heads; ++h) heads.push_back({c.rows, keep, 0, 1, h * (keep + 32)});
  const DeviceArray<SelectHead> heads_on(heads);
  const DeviceArray<RowRange> forced(std::vector<RowRange>{{c.rows - 32, c.rows}});
  const DeviceArray<uint32_t> retained(size_t{c.heads} * (keep + 32));
  const SelectArgs args{c.scores.get(), c.rows,  heads_on.get(), forced.get(),
                        retained.get(), nullptr, c.heads,        c.rows};
  const double seconds = median_of_replays(
      state, 4, [&](uint32_t, cudaStream_t stream) { return select_entries(args, stream); });
  report(state, c.all() * 4 + static_cast<double>(c.heads) * (keep + 32) * 4, seconds);
  label_with_digest(state, retained);
}

void compact(benchmark::State& state) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const uint32_t keep = c.rows / 2;
  std::vector<CompactHead> heads;
  std::vector<uint32_t> retained;
  for (uint32_t h = 0; h < c.heads; ++h) {
    heads.push_back({c.host[h], c.host[h].table, 0, h * keep, keep});
    for (uint32_t i = 0; i < keep; ++i) retained.push_back(2 * i + 1);
  }
  const DeviceArray<CompactHead> heads_on(heads);
  const DeviceArray<uint32_t> retained_on(retained);
  const CompactArgs args{c.kv_entries(), c.pool.get(),      c.scorer_state.get(),
                         heads_on.get(), retained_on.get(), nullptr,
                         c.heads};
  const double seconds = median_of_replays(
      state, 2, [&](uint32_t, cudaStream_t stream) { return compact_entries(args, stream); });
  report(state, static_cast<double>(c.heads) * keep * (8 * kDim + 12), seconds);
  label_with_digest(state, c.pool);
}

void scorer_state(benchmark::State& state) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  std::vector<StateScoreHead> heads;
  for (const KvEntryHead& head : c.host) heads.push_back({head, 0, 0});
  const DeviceArray<StateScoreHead> heads_on(heads);
  const StateScoreArgs args{
      c.kv_entries(), heads_on.get(), c.scorer_state.get(), nullptr, c.scores.get(), c.rows, c.heads, c.rows};
  const double seconds = median_of_replays(
      state, 4, [&](uint32_t, cudaStream_t stream) { return score_from_state(args, stream); });
  report(state, c.all() * 8, seconds);
  label_with_digest(state, c.scores);
}

// IntentKV's rule: all layers of one request, one score per row.
void intent(benchmark::State& state) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  constexpr uint32_t kKvHeads = 8;
  const DeviceArray<float> memory(std::vector<float>(size_t{c.heads} * kGroup * kDim, 0.088f));
  IntentScoreArgs args;
  args.kv_entries = c.kv_entries(), args.heads = c.list.get(), args.memory = memory.get(),
  args.scale = 0.088f;
  args.layers = c.heads / kKvHeads, args.query_heads = kKvHeads * kGroup, args.kv_heads = kKvHeads;
  args.rows = c.rows;
  const DeviceArray<float> workspace(intent_floats(args));
  args.workspace = workspace.get();
  const double seconds = median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) {
    const cudaError_t error = intent_layers(args, 0, args.layers, stream);
    return error != cudaSuccess ? error : intent_scores(args, 1, false, c.scores.get(), c.rows, 1, stream);
  });
  report(state, c.all() * 2 * kDim, seconds);
  label_with_digest(state, c.scores);
}

// IntentKV's residual, beside the rule: mean keys of all layers, and the head with a query span of 64 rows.
void intent_residual(benchmark::State& state) {
  const KvEntries c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  constexpr uint32_t kKvHeads = 8;
  const DeviceArray<float> weights(intent_residual_weights(kernels::make_intent_residual(kDim, 5)));
  const DeviceArray<float> mbar(std::vector<float>(kDim, 0.05f));
  IntentResidualArgs args;
  args.rule.kv_entries = c.kv_entries(), args.rule.heads = c.list.get();
  args.rule.layers = c.heads / kKvHeads, args.rule.query_heads = kKvHeads * kGroup;
  args.rule.kv_heads = kKvHeads, args.rule.rows = args.candidates = c.rows;
  args.weights = weights.get(), args.mbar = mbar.get();
  args.span_begin = c.rows - 64, args.span_end = c.rows;
  const DeviceArray<float> workspace(intent_residual_floats(args));
  args.workspace = workspace.get();
  const double seconds = median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) {
    const cudaError_t error = intent_key_sums(args, 0, args.rule.layers, stream);
    return error != cudaSuccess ? error : intent_correct_scores(args, c.scores.get(), c.rows, 1, stream);
  });
  report(state, c.all() * 2 * kDim, seconds);
  label_with_digest(state, c.scores);
}

// IntentKV's memory update: the mean of 64 query rows of 32 heads, of every layer.
void intent_mean(benchmark::State& state) {
  const auto layers = static_cast<uint32_t>(state.range(0)), rows = static_cast<uint32_t>(state.range(1));
  constexpr uint32_t kWidth = 32 * kDim;
  const DeviceArray<__nv_bfloat16> q = random_bf16(size_t{layers} * rows * kWidth);
  const DeviceArray<float> out(size_t{layers} * kWidth);
  const double seconds = median_of_replays(state, 4, [&](uint32_t, cudaStream_t stream) {
    return intent_means(q.get(), uint64_t{rows} * kWidth, layers, rows, kWidth, out.get(), stream);
  });
  report(state, static_cast<double>(q.bytes() + out.bytes()), seconds);
  label_with_digest(state, out);
}

// The ceiling of kernels over scorer state: pieces of 64 bytes in a table's order, four lanes each, read or
// copied.
template <bool kCopied>
__global__ void pieces_kernel(const float4* from, const uint32_t* table, float4* to, uint32_t count) {
  constexpr uint32_t kEach = 4;
  const uint32_t first = blockIdx.x * blockDim.x * kEach + threadIdx.x;
  uint32_t piece[kEach];
  float4 held[kEach];
#pragma unroll
  for (uint32_t k = 0; k < kEach; ++k) piece[k] = __ldg(table + min((first + k * blockDim.x) / 4, count - 1));
#pragma unroll
  for (uint32_t k = 0; k < kEach; ++k)
    held[k] = __ldcs(from + size_t{piece[k]} * 4 + (first + k * blockDim.x) % 4);
#pragma unroll
  for (uint32_t k = 0; k < kEach; ++k) {
    const uint32_t at = first + k * blockDim.x;
    if (at < 4 * count && (kCopied || held[k].x == -1))
      __stcs(to + at, held[k]);  // never true without kCopied: no number is -1
  }
}
void pieces(benchmark::State& state, bool copied, bool shuffled) {
  constexpr uint32_t kCount = 1 << 20, kSets = 4;
  std::vector<uint32_t> order(kCount);
  std::iota(order.begin(), order.end(), 0);
  if (shuffled) std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const DeviceArray<uint32_t> table(order);
  const DeviceArray<float> from(std::vector<float>(size_t{kCount} * kSets * 16, 0.5f)), to(from.bytes() / 4);
  const double seconds = median_of_replays(state, 2 * kSets, [&](uint32_t i, cudaStream_t stream) {
    const size_t set = size_t{i % kSets} * kCount * 4;
    const auto* const source = reinterpret_cast<const float4*>(from.get()) + set;
    auto* const target = reinterpret_cast<float4*>(to.get()) + set;
    (copied ? pieces_kernel<true> : pieces_kernel<false>)<<<kCount * 4 / 1024, 256, 0, stream>>>(
        source, table.get(), target, kCount);
    return cudaGetLastError();
  });
  report(state, kCount * (copied ? 132.0 : 68.0), seconds);
  if (copied) label_with_digest(state, to);
}

// All heads of one request, and of many.
void sizes(benchmark::internal::Benchmark* b) {
  b->Args({256, 8192})->Args({256, 32768})->Args({2048, 8192})->Iterations(9)->UseManualTime();
}
BENCHMARK_CAPTURE(keys, knorm, false)->Apply(sizes);
BENCHMARK_CAPTURE(keys, keydiff, true)->Apply(sizes);
BENCHMARK(select)->Apply(sizes)->Args({256, 65536})->Args({1024, 2048})->Args({8, 131072})->Args({64, 8192});
BENCHMARK(compact)->Apply(sizes);
BENCHMARK(scorer_state)->Args({256, 32768})->Args({2048, 8192})->Iterations(9)->UseManualTime();
BENCHMARK(intent)->Args({256, 2560})->Args({256, 8192})->Args({256, 30720})->Iterations(9)->UseManualTime();
BENCHMARK(intent_residual)
    ->Args({256, 2560})
    ->Args({256, 8192})
    ->Args({256, 30720})
    ->Iterations(9)
    ->UseManualTime();
BENCHMARK(intent_mean)->Args({32, 64})->Iterations(9)->UseManualTime();
BENCHMARK_CAPTURE(pieces, read_random, false, true)->Iterations(9)->UseManualTime();
BENCHMARK_CAPTURE(pieces, read_in_order, false, false)->Iterations(9)->UseManualTime();
BENCHMARK_CAPTURE(pieces, copied_random, true, true)->Iterations(9)->UseManualTime();
BENCHMARK_CAPTURE(pieces, copied_in_order, true, false)->Iterations(9)->UseManualTime();
BENCHMARK(attention_scores)
    ->Args({256, 8192, 1})
    ->Args({8, 32768, 1})
    ->Args({64, 32768, 1})
    ->Args({256, 8192, 32})
    ->Args({8, 32768, 64})
    ->Args({8, 32768, 512})
    ->Iterations(5)
    ->UseManualTime();

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
