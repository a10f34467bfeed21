// The kernels that convert and move KV entries: bytes read and written against 4.69 TB/s. Llama-3.1-8B's
// shapes, at least 32 MB per launch; launches rotate over sets of pages larger than L2.

#include <numeric>

#include "kernels/bench/replay.cuh"
#include "kernels/cache_ops/page_moves.h"
#include "kernels/cache_ops/rope_append_cuda.h"

namespace kvtwin::test {
namespace {

constexpr uint32_t kDim = 128, kKvHeads = 8, kQueryHeads = 32;

void report(benchmark::State& state, double bytes, double seconds) {
  state.counters["us_median"] = seconds * 1e6;
  state.counters["MB"] = bytes / 1e6;
  state.counters["GBps"] = bytes / seconds / 1e9;
  state.counters["pct_ceiling"] = bytes / seconds / kReadCeiling * 100;
}

std::vector<uint32_t> shuffled(size_t count, uint32_t seed) {
  std::vector<uint32_t> out(count);
  std::iota(out.begin(), out.end(), 0);
  std::shuffle(out.begin(), out.end(), std::mt19937(seed));
  return out;
}

void rope(benchmark::State& state, bool norm) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  constexpr uint32_t kWidth = (kQueryHeads + 2 * kKvHeads) * kDim, kPage = 16;
  const uint32_t sets = std::max(1u, 400'000'000u / (rows * kWidth * 4));
  const auto qkv = random_bf16(size_t{sets} * rows * kWidth), weight = random_bf16(kDim);
  const DeviceArray<__nv_bfloat16> q(size_t{sets} * rows * kQueryHeads * kDim);
  const DeviceArray<__nv_bfloat16> pool(size_t{sets} * rows * kKvHeads * 2 * kDim);
  std::vector<float> inv_freq(kDim / 2);
  for (uint32_t i = 0; i < kDim / 2; ++i) inv_freq[i] = std::pow(5e5f, -2.f * static_cast<float>(i) / kDim);
  std::vector<uint32_t> positions(rows);
  std::iota(positions.begin(), positions.end(), 20000);
  const std::vector<uint32_t> pages = shuffled(rows / kPage, 1);
  std::vector<AppendSlot> slots(rows);
  for (uint32_t r = 0; r < rows; ++r) slots[r] = {pages[r / kPage] * kKvHeads, r % kPage};
  const DeviceArray<float> freq(inv_freq);
  const DeviceArray<uint32_t> at(positions);
  const DeviceArray<AppendSlot> slots_on(slots);
  RopeAppendArgs args;
  args.positions = at.get(), args.slots = slots_on.get(), args.inv_freq = freq.get(), args.eps = 1e-5f;
  args.rows = rows, args.query_heads = kQueryHeads, args.kv_heads = kKvHeads,
  args.q_stride = kQueryHeads * kDim;
  if (norm) args.q_norm = args.k_norm = weight.get();
  const double seconds = median_of_replays(state, std::max(8u, sets), [&](uint32_t i, cudaStream_t stream) {
    const size_t set = i % sets;
    args.qkv = qkv.get() + set * rows * kWidth, args.q = q.get() + set * rows * kQueryHeads * kDim;
    args.pool = pool.get() + set * rows * kKvHeads * 2 * kDim;
    return rope_append(args, stream);
  });
  report(state, static_cast<double>(rows) * kWidth * 4, seconds);
  label_with_digest(state, pool);
}

void summarise(benchmark::State& state, PageSummaryKind kind, uint32_t page) {
  const uint32_t count = (64u << 20) / (page * 2 * kDim), sets = 6;
  const auto pool = random_bf16(size_t{sets} * count * page * 2 * kDim);
  const std::vector<uint32_t> blocks = shuffled(size_t{sets} * count, 2);
  std::vector<SummaryPage> pages;
  for (const uint32_t block : blocks)
    pages.push_back({block, page, static_cast<uint32_t>(pages.size()) % count});
  const DeviceArray<SummaryPage> table(pages);
  const DeviceArray<__nv_bfloat16> out(size_t{count} * 2 * kDim);
  const double seconds = median_of_replays(state, 12, [&](uint32_t i, cudaStream_t stream) {
    return summarise_pages({pool.get(), table.get() + i % sets * count, out.get(), count, page, kDim, kind},
                           stream);
  });
  report(state, static_cast<double>(count) * (page * 2 * kDim + 4 * kDim), seconds);
  label_with_digest(state, out);
}

void gather(benchmark::State& state, bool all) {
  constexpr uint32_t kPage = 16, kRequests = 32, kKvEntries = 8192, kSequences = kRequests * kKvHeads;
  const uint32_t pages = kSequences * (kKvEntries / kPage), stay = all ? kKvEntries : kKvEntries / 2;
  const auto source = random_bf16(size_t{pages} * kPage * 2 * kDim);
  const DeviceArray<__nv_bfloat16> target(size_t{pages} * kPage * 2 * kDim);
  const DeviceArray<uint32_t> from(shuffled(pages, 3)), to(shuffled(pages, 4));
  std::vector<GatherSequence> table;
  std::vector<uint32_t> retained;
  for (uint32_t s = 0; s <= kSequences; ++s) {
    table.push_back({s * stay, s * (kKvEntries / kPage), 0, s * (kKvEntries / kPage), 0});
    std::vector<uint32_t> mine = shuffled(kKvEntries, s);
    std::sort(mine.begin(), mine.begin() + stay);
    retained.insert(retained.end(), mine.begin(), mine.begin() + stay);
  }
  const DeviceArray<GatherSequence> table_on(table);
  const DeviceArray<uint32_t> retained_on(retained);
  const GatherArgs args{source.get(),
                        target.get(),
                        {from.get(), kPage, 1},
                        {to.get(), kPage, 1},
                        table_on.get(),
                        all ? nullptr : retained_on.get(),
                        kSequences,
                        kDim};
  const double seconds = median_of_replays(
      state, 4, [&](uint32_t, cudaStream_t stream) { return gather_entries(args, stream); });
  report(state, static_cast<double>(kSequences) * stay * (8 * kDim + (all ? 0 : 4)), seconds);
  label_with_digest(state, target);
}

void times(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Iterations(11)->Unit(benchmark::kMicrosecond);
}
void rows(benchmark::internal::Benchmark* b) { times(b->Arg(32)->Arg(512)->Arg(2048)->Arg(8192)); }
BENCHMARK_CAPTURE(rope, plain, false)->Apply(rows);
BENCHMARK_CAPTURE(rope, norm, true)->Apply(rows);
BENCHMARK_CAPTURE(summarise, min_max_16, PageSummaryKind::kMinMax, 16)->Apply(times);
BENCHMARK_CAPTURE(summarise, min_max_32, PageSummaryKind::kMinMax, 32)->Apply(times);
BENCHMARK_CAPTURE(summarise, cuboid_32, PageSummaryKind::kCuboid, 32)->Apply(times);
BENCHMARK_CAPTURE(gather, retained_half, false)->Apply(times);
BENCHMARK_CAPTURE(gather, copy, true)->Apply(times);

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
