// The small kernels of a forward pass, attention_rows, and conversions of KV entries to and from packed
// pages: bytes read and written against 4.69 TB/s. Llama-3.1-8B's shapes, with few rows (a decode step) and
// many (a chunk). Launches rotate over sets of inputs larger than L2.

#include <numeric>

#include "kernels/attention/attention_rows.h"
#include "kernels/bench/replay.cuh"
#include "kernels/cache_ops/qkv_append.h"
#include "kernels/dense/dense_cuda.h"
#include "kernels/quant/convert_entries.h"

namespace kvtwin::test {
namespace {

constexpr uint32_t kHidden = 4096, kInner = 14336, kVocab = 128'256, kDim = 128, kKvHeads = 8,
                   kQueryHeads = 32;

void report(benchmark::State& state, double bytes, double seconds) {
  state.counters["us_median"] = seconds * 1e6;
  state.counters["MB"] = bytes / 1e6;
  state.counters["GBps"] = bytes / seconds / 1e9;
  state.counters["pct_ceiling"] = bytes / seconds / kReadCeiling * 100;
}
uint32_t rows_of(const benchmark::State& state) { return static_cast<uint32_t>(state.range(0)); }
// Number of sets of `bytes` that together exceed L2 several times.
uint32_t sets_for(double bytes) {
  return static_cast<uint32_t>(std::clamp<double>(std::ceil(300e6 / bytes), 1, 64));
}
DeviceArray<float> random_floats(size_t count) {
  std::vector<float> out(count);
  std::mt19937 random(5);
  for (float& x : out) x = static_cast<float>(random() % 65536) / 8192 - 4;
  return DeviceArray<float>(out);
}
// The same random rows, repeated for each set.
DeviceArray<float> float_sets(size_t each, uint32_t sets) {
  const DeviceArray<float> one = random_floats(each);
  DeviceArray<float> out(each * sets);
  for (uint32_t i = 0; i < sets; ++i)
    KVT_CUDA(cudaMemcpy(out.get() + i * each, one.get(), each * sizeof(float), cudaMemcpyDeviceToDevice));
  return out;
}

// Measures `launch(set, stream)` over rotating sets; the digest is that of `out` after the last launch.
template <typename Out, typename Launch>
void measure(benchmark::State& state, double bytes, uint32_t sets, const Out& out, const Launch& launch) {
  const double seconds = median_of_replays(state, std::max(8u, sets), [&](uint32_t i, cudaStream_t stream) {
    return launch(size_t{i % sets}, stream);
  });
  report(state, bytes, seconds);
  label_with_digest(state, out);
}

void norm(benchmark::State& state) {
  const uint32_t rows = rows_of(state);
  const double bytes = double{6} * rows * kHidden;
  const uint32_t sets = sets_for(bytes);
  const size_t each = size_t{rows} * kHidden;
  const DeviceArray<float> x = float_sets(each, sets), weight = random_floats(kHidden);
  const DeviceArray<__nv_bfloat16> out(each * sets);
  measure(state, bytes, sets, out, [&](size_t set, cudaStream_t stream) {
    const size_t at = set * each;
    return rms_norm({x.get() + at, nullptr, weight.get(), 1e-5f, rows, kHidden, out.get() + at}, stream);
  });
}

void silu(benchmark::State& state) {
  const uint32_t rows = rows_of(state);
  const double bytes = double{6} * rows * kInner;
  const uint32_t sets = sets_for(bytes);
  const size_t each = size_t{rows} * kInner;
  const auto gate_up = random_bf16(2 * each * sets);
  const DeviceArray<__nv_bfloat16> out(each * sets);
  measure(state, bytes, sets, out, [&](size_t set, cudaStream_t stream) {
    const size_t at = set * each;
    return silu_mul({gate_up.get() + 2 * at, rows, kInner, out.get() + at}, stream);
  });
}

void embedding(benchmark::State& state) {
  const uint32_t rows = rows_of(state);
  const double bytes = double{6} * rows * kHidden;
  const uint32_t sets = sets_for(bytes);
  const auto table = random_bf16(size_t{kVocab} * kHidden);
  std::vector<uint32_t> tokens(size_t{rows} * sets);
  std::mt19937 random(6);
  for (uint32_t& token : tokens) token = random() % kVocab;
  const DeviceArray<uint32_t> tokens_on(tokens);
  const DeviceArray<float> x(size_t{rows} * sets * kHidden);
  measure(state, bytes, sets, x, [&](size_t set, cudaStream_t stream) {
    const size_t at = set * rows;
    return embed({table.get(), tokens_on.get() + at, rows, kHidden, x.get() + at * kHidden}, stream);
  });
}

void bias(benchmark::State& state) {
  const uint32_t rows = rows_of(state);
  const double bytes = double{8} * rows * kHidden;
  const uint32_t sets = sets_for(bytes);
  const size_t each = size_t{rows} * kHidden;
  const DeviceArray<float> x = float_sets(each, sets), weight = random_floats(kHidden);
  measure(state, bytes, sets, x, [&](size_t set, cudaStream_t stream) {
    return add_bias({weight.get(), rows, kHidden, x.get() + set * each}, stream);
  });
}

void choose_token(benchmark::State& state) {
  const uint32_t rows = rows_of(state);
  const double bytes = double{4} * rows * kVocab;
  const uint32_t sets = std::min(sets_for(bytes), 16u);
  const size_t each = size_t{rows} * kVocab;
  const DeviceArray<float> logits = float_sets(each, sets);
  const DeviceArray<uint32_t> out(rows);
  measure(state, bytes, sets, out, [&](size_t set, cudaStream_t stream) {
    return argmax({logits.get() + set * each, rows, kVocab, out.get()}, stream);
  });
}

void append(benchmark::State& state) {
  const uint32_t rows = rows_of(state);
  constexpr uint32_t kWidth = (kQueryHeads + 2 * kKvHeads) * kDim, kPage = 16;
  const double bytes = double{4} * rows * kWidth;
  const uint32_t sets = sets_for(bytes);
  const auto qkv = random_bf16(size_t{sets} * rows * kWidth);
  const DeviceArray<__nv_bfloat16> q(size_t{sets} * rows * kQueryHeads * kDim);
  const DeviceArray<__nv_bfloat16> pool(size_t{sets} * rows * kKvHeads * 2 * kDim);
  std::vector<float> inv_freq(kDim / 2);
  for (uint32_t i = 0; i < kDim / 2; ++i) inv_freq[i] = std::pow(5e5f, -2.f * static_cast<float>(i) / kDim);
  std::vector<uint32_t> positions(rows);
  std::iota(positions.begin(), positions.end(), 20'000);
  std::vector<AppendSlot> slots(rows);
  for (uint32_t r = 0; r < rows; ++r) slots[r] = {r / kPage * kKvHeads, r % kPage};
  const DeviceArray<float> freq(inv_freq);
  const DeviceArray<uint32_t> at(positions);
  const DeviceArray<AppendSlot> slots_on(slots);
  RopeAppendArgs args;
  args.positions = at.get(), args.slots = slots_on.get(), args.inv_freq = freq.get();
  args.rows = rows, args.query_heads = kQueryHeads, args.kv_heads = kKvHeads,
  args.q_stride = kQueryHeads * kDim;
  measure(state, bytes, sets, q, [&](size_t set, cudaStream_t stream) {
    args.qkv = qkv.get() + set * rows * kWidth, args.q = q.get() + set * rows * kQueryHeads * kDim;
    args.pool = pool.get() + set * rows * kKvHeads * 2 * kDim;
    return qkv_append(args, stream);
  });
}

// range: rows, KV entries per row. A decode step: every row has its own pages.
void any_rows(benchmark::State& state) {
  const uint32_t rows = rows_of(state), kv_entries = static_cast<uint32_t>(state.range(1));
  constexpr uint32_t kPage = 16;
  const uint32_t pages = rows * kv_entries / kPage;
  const auto pool = random_bf16(size_t{pages} * kPage * kKvHeads * 2 * kDim);
  const auto q = random_bf16(size_t{rows} * kQueryHeads * kDim);
  const DeviceArray<__nv_bfloat16> out(size_t{rows} * kQueryHeads * kDim);
  std::vector<uint32_t> numbers(pages);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(8));
  std::vector<QueryRow> list;
  for (uint32_t r = 0; r < rows; ++r) list.push_back({r, r * kv_entries / kPage, kv_entries});
  const DeviceArray<uint32_t> table(numbers);
  const DeviceArray<QueryRow> list_on(list);
  AttentionRowsArgs args;
  args.pool = pool.get(), args.pages = table.get(), args.list = list_on.get(), args.q = q.get();
  args.out = out.get(), args.scale = 0.088f, args.rows = rows, args.query_heads = kQueryHeads;
  args.kv_heads = kKvHeads, args.head_dim = kDim, args.page_tokens = kPage;
  const double seconds = median_of_replays(
      state, 2, [&](uint32_t, cudaStream_t stream) { return attention_rows(args, stream); });
  report(state, static_cast<double>(rows) * kv_entries * kKvHeads * 4 * kDim, seconds);
  label_with_digest(state, out);
}

// The history of 32 requests of 2k KV entries, unpacked or packed.
void convert(benchmark::State& state, Format format, bool packing) {
  constexpr uint32_t kRequests = 32, kKvEntries = 2048, kDequantizedPage = 16;
  const PageShape shape{32, kDim, 32};
  const size_t packed_bytes =
      page_bytes(format, shape) * kKvHeads * (kRequests * kKvEntries / shape.page_tokens);
  const auto dequantized = random_bf16(size_t{kRequests} * kKvEntries * kKvHeads * 2 * kDim);
  // Bytes that are valid in every format: scales of about 1 in fp16, powers of two near 1.
  DeviceArray<uint8_t> packed(packed_bytes);
  KVT_CUDA(cudaMemset(packed.get(), 0x38, packed_bytes));
  std::vector<KvEntrySpan> spans;
  for (uint32_t i = 0; i < kRequests; ++i)
    spans.push_back({i * kKvEntries, i * kKvEntries, kKvEntries, kBothSides});
  const DeviceArray<KvEntrySpan> spans_on(spans);
  const ConvertArgs args{spans_on.get(), kRequests, format, shape, kKvHeads, kDequantizedPage};
  const double seconds = median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) {
    return packing ? pack_entries(args, dequantized.get(), packed.get(), stream)
                   : unpack_entries(args, packed.get(), dequantized.get(), stream);
  });
  report(state, static_cast<double>(dequantized.bytes() + packed_bytes), seconds);
  if (packing) {
    label_with_digest(state, packed);
  } else {
    label_with_digest(state, dequantized);
  }
}

void few_and_many(benchmark::internal::Benchmark* b) {
  b->Arg(32)->Arg(2048)->Arg(8192)->Iterations(11)->UseManualTime();
}
void of_a_step(benchmark::internal::Benchmark* b) { b->Arg(1)->Arg(32)->Iterations(11)->UseManualTime(); }
void once(benchmark::internal::Benchmark* b) { b->Iterations(7)->UseManualTime(); }
BENCHMARK(norm)->Apply(few_and_many);
BENCHMARK(silu)->Apply(few_and_many);
BENCHMARK(embedding)->Apply(few_and_many);
BENCHMARK(bias)->Apply(few_and_many);
BENCHMARK(append)->Arg(32)->Arg(512)->Arg(2048)->Iterations(11)->UseManualTime();
BENCHMARK(choose_token)->Apply(of_a_step);
BENCHMARK(any_rows)->Args({32, 2048})->Apply(once);
BENCHMARK_CAPTURE(convert, pack_fp8, Format::kFp8, true)->Apply(once);
BENCHMARK_CAPTURE(convert, pack_int4, Format::kInt4, true)->Apply(once);
BENCHMARK_CAPTURE(convert, pack_fp4, Format::kFp4, true)->Apply(once);
BENCHMARK_CAPTURE(convert, unpack_fp8, Format::kFp8, false)->Apply(once);
BENCHMARK_CAPTURE(convert, unpack_int4, Format::kInt4, false)->Apply(once);
BENCHMARK_CAPTURE(convert, unpack_int2, Format::kInt2, false)->Apply(once);
BENCHMARK_CAPTURE(convert, unpack_fp4, Format::kFp4, false)->Apply(once);

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
