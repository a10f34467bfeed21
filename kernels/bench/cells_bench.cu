// Time of the small kernels round scores and marks: gates of what a product gave, marks of new cells, what
// query rows add to marks, means, rows for scorers on the host, copies. Bytes of each one's floor
// against 4.69 TB/s.

#include "kernels/bench/cell_case.cuh"
#include "kernels/cell_gates.h"
#include "kernels/cell_marks.h"
#include "kernels/convert_cells.h"
#include "kernels/page_choice.h"
#include "kernels/score_look.h"

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

// What eight query rows of four heads found, added to marks, or stamped on them, or what a group points at.
enum class Use { kMarks, kStamps, kPointed };
void looked(benchmark::State& state, Use use) {
  const Cells c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  constexpr uint32_t kQueries = 8;
  const auto q = random_bf16(size_t{c.heads} * kQueries * kGroup * kDim);
  const auto sums = random_floats(size_t{c.heads} * kGroup * c.rows);
  std::vector<LookHead> heads;
  for (uint32_t h = 0; h < c.heads; ++h) heads.push_back({c.host[h], h * kQueries, 0, kQueries, 0, c.rows});
  const DeviceArray<LookHead> heads_on(heads);
  const DeviceArray<uint32_t> visible(std::vector<uint32_t>(kQueries, c.rows));
  LookArgs look;
  look.cells = c.cells(), look.heads = heads_on.get(), look.q = q.get(), look.visible = visible.get();
  look.sums = sums.get(), look.stride = c.rows, look.scale = 0.088f, look.count = c.heads,
  look.group = kGroup;
  look.q_stride = kGroup * kDim, look.rows_max = c.rows, look.queries_max = kQueries;
  const MarkArgs marks{look, c.marks.get(), 0.25f, 7};
  const double seconds = median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) {
    if (use == Use::kPointed) return score_pointed_cells(look, c.scores.get(), c.rows, stream);
    return use == Use::kMarks ? gather_marks(marks, stream) : stamp_cells(marks, stream);
  });
  report(state, c.all() * (use == Use::kPointed ? 2 * kDim + 4 : 4 * kGroup + 8), seconds);
  label_with_digest(state, use == Use::kPointed ? c.scores : c.marks);
}

void means(benchmark::State& state) {
  const Cells c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const DeviceArray<float> out(c.rows);
  const double seconds = median_of_replays(state, 4, [&](uint32_t, cudaStream_t stream) {
    return mean_scores(c.scores.get(), c.rows, c.heads, c.rows, out.get(), stream);
  });
  report(state, (c.all() + c.rows) * 4, seconds);
  label_with_digest(state, out);
}

void read(benchmark::State& state) {
  const Cells c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const DeviceArray<float> keys(static_cast<size_t>(c.all()) * kDim);
  const ReadCellsArgs args{c.cells(), c.list.get(), keys.get(), nullptr, c.rows, c.heads, c.rows};
  const double seconds =
      median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) { return read_cells(args, stream); });
  report(state, c.all() * kDim * 6, seconds);
  label_with_digest(state, keys);
}

void new_marks(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  std::vector<AppendSlot> slots;
  for (uint32_t i = 0; i < rows * kKvHeads; ++i) slots.push_back({i / kPage, i % kPage});
  std::shuffle(slots.begin(), slots.end(), std::mt19937(4));
  const DeviceArray<AppendSlot> slots_on(slots);
  const auto values = random_floats(slots.size());
  const DeviceArray<float> marks(slots.size());
  const NewMarksArgs args{slots_on.get(), values.get(), nullptr, marks.get(), rows, kKvHeads, kPage};
  const double seconds =
      median_of_replays(state, 4, [&](uint32_t, cudaStream_t stream) { return write_marks(args, stream); });
  report(state, static_cast<double>(slots.size()) * 16, seconds);
  label_with_digest(state, marks);
}

void copied(benchmark::State& state) {
  constexpr uint32_t kCalls = 32, kCells = 2048;
  const auto source = random_bf16(size_t{kCalls} * kCells * kKvHeads * 2 * kDim);
  const DeviceArray<__nv_bfloat16> target(source.bytes() / 2);
  std::vector<CellSpan> spans;
  for (uint32_t i = 0; i < kCalls; ++i)
    spans.push_back({i * kCells, (kCalls - 1 - i) * kCells, kCells, kBothSides});
  const DeviceArray<CellSpan> spans_on(spans);
  const ConvertArgs args{spans_on.get(), kCalls, Format::kBf16, {kPage, kDim, 32}, kKvHeads, kPage};
  const double seconds = median_of_replays(state, 2, [&](uint32_t, cudaStream_t stream) {
    return copy_cells(args, source.get(), target.get(), stream);
  });
  report(state, 2.0 * static_cast<double>(source.bytes()), seconds);
  label_with_digest(state, target);
}

// The queries that a step leaves for the next one: 32 decodes, one layer.
void queries(benchmark::State& state) {
  constexpr uint32_t kRows = 32, kNumbers = kKvHeads * kGroup * kDim;
  const auto q = random_bf16(size_t{kRows} * kNumbers);
  const DeviceArray<__nv_bfloat16> before(size_t{kRows} * kNumbers);
  std::vector<QueryKept> rows;
  for (uint32_t i = 0; i < kRows; ++i) rows.push_back({i, kRows - 1 - i});
  const DeviceArray<QueryKept> rows_on(rows);
  const double seconds = median_of_replays(state, 8, [&](uint32_t, cudaStream_t stream) {
    return keep_queries(rows_on.get(), kRows, kNumbers, q.get(), before.get(), stream);
  });
  report(state, 2.0 * static_cast<double>(q.bytes()), seconds);
  label_with_digest(state, before);
}

void rows(benchmark::internal::Benchmark* b) { b->Arg(32)->Arg(8192)->Iterations(9)->UseManualTime(); }
void cells(benchmark::internal::Benchmark* b) { b->Args({256, 8192})->Iterations(7)->UseManualTime(); }
BENCHMARK(fastkvzip)->Apply(rows);
BENCHMARK(trimkv)->Apply(rows);
BENCHMARK(new_marks)->Arg(32)->Arg(1 << 18)->Iterations(9)->UseManualTime();
BENCHMARK_CAPTURE(looked, marks, Use::kMarks)->Apply(cells);
BENCHMARK_CAPTURE(looked, stamps, Use::kStamps)->Apply(cells);
BENCHMARK_CAPTURE(looked, pointed, Use::kPointed)->Apply(cells);
BENCHMARK(means)->Args({256, 32768})->Iterations(9)->UseManualTime();
BENCHMARK(read)->Apply(cells);
BENCHMARK(copied)->Iterations(7)->UseManualTime();
BENCHMARK(queries)->Iterations(9)->UseManualTime();

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
