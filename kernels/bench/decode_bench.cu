// The decode kernel at the shapes of Llama-3.1-8B, one layer: time inside a CUDA graph, percent of the
// measured read ceiling of an H200 (4.69 TB/s), and a digest of the output.
//
// Page tables are shuffled over one large pool, and launches go round over as many of them as needed that
// nothing is found in L2.

#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>

#include "kernels/bench/replay.cuh"

namespace kvtwin::test {
namespace {

constexpr uint32_t kKvHeads = 8, kGroup = 4, kDim = 128, kPage = 16;
constexpr size_t kPoolBlocks = (size_t{18} << 30) / (4 * kDim * kPage);

struct Bench {
  DeviceArray<__nv_bfloat16> pool{kPoolBlocks * 2 * kDim * kPage};
  cudaStream_t stream{};

  Bench() {
    fill_bf16<<<1056, 256>>>(reinterpret_cast<uint4*>(pool.get()), pool.bytes() / 16);
    KVT_CUDA(cudaStreamCreate(&stream));
    KVT_CUDA(cudaDeviceSynchronize());
  }
};
Bench& bench() {
  static Bench instance;
  return instance;
}

// Tokens of each KV head of `calls` calls.
using Lengths = std::vector<uint32_t> (*)(uint32_t calls, uint32_t tokens);
std::vector<uint32_t> uniform(uint32_t calls, uint32_t tokens) {
  return std::vector<uint32_t>(size_t{calls} * kKvHeads, tokens);
}
std::vector<uint32_t> one_hot(uint32_t calls, uint32_t tokens) {
  std::vector<uint32_t> out = uniform(calls, tokens / 16);
  for (size_t i = 0; i < out.size(); i += kKvHeads) out[i + i / kKvHeads % kKvHeads] = tokens;
  return out;
}
std::vector<uint32_t> ten_ninety(uint32_t calls, uint32_t tokens) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < calls * kKvHeads; ++i) out.push_back(tokens * (i % 2 ? 9 : 1) / 10);
  return out;
}

void report(benchmark::State& state, const std::vector<double>& seconds, double bytes, bool plan_only,
            const DeviceArray<__nv_bfloat16>& out) {
  const double typical = median(seconds);
  state.counters["us_median"] = typical * 1e6;
  state.counters["floor_us"] = bytes / kReadCeiling * 1e6;
  if (!plan_only) state.counters["pct_ceiling"] = bytes / kReadCeiling / typical * 100;
  uint64_t digest = 0;
  for (const __nv_bfloat16 value : out.read()) {
    uint16_t bits;
    std::memcpy(&bits, &value, 2);
    digest = (digest ^ bits) * 0x100000001b3u;
  }
  char label[32];
  std::snprintf(label, sizeof label, "digest %016llx", static_cast<unsigned long long>(digest));
  state.SetLabel(label);
}

void decode(benchmark::State& state, Lengths lengths, bool plan_only) {
  const auto calls = static_cast<uint32_t>(state.range(0)), tokens = static_cast<uint32_t>(state.range(1));
  const std::vector<uint32_t> each = lengths(calls, tokens);
  const double bytes = std::accumulate(each.begin(), each.end(), 0.0) * 4 * kDim;
  std::vector<DecodeSequence> rows;
  uint32_t pages = 0;
  for (uint32_t i = 0; i < each.size(); ++i) {
    rows.push_back({i * kGroup, pages, each[i], 0});
    pages += (each[i] + kPage - 1) / kPage;
  }
  const auto sets = static_cast<uint32_t>(std::clamp<double>(std::ceil(384e6 / bytes), 1, 48));
  std::vector<uint32_t> numbers(kPoolBlocks);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
  if (size_t{pages} * sets > numbers.size()) return state.SkipWithError("the pool is too small");
  DecodeShape shape{kDim, kGroup, kPage, 1, static_cast<uint32_t>(each.size()), 132};
  const DeviceArray<uint32_t> table_pages(numbers);
  const DeviceArray<DecodeSequence> table(rows);
  const DeviceArray<__nv_bfloat16> q(
      std::vector<__nv_bfloat16>(each.size() * kGroup * kDim, __float2bfloat16(0.5f)));
  const DeviceArray<__nv_bfloat16> out(each.size() * kGroup * kDim);
  const DeviceArray<char> plan(decode_plan_bytes(shape));
  const DeviceArray<char> workspace(std::vector<char>(decode_workspace_bytes(shape), 0));
  DecodeArgs args{bench().pool.get(), table_pages.get(), table.get(), q.get(),
                  out.get(),          0.0883883f,        plan.get(),  workspace.get()};
  cudaStream_t stream = bench().stream;
  KVT_CUDA(plan_attention_decode(shape, args, stream));
  KVT_CUDA(attention_decode(shape, args, stream));
  KVT_CUDA(cudaStreamSynchronize(stream));
  const std::vector<double> seconds = replays(state, stream, std::max(sets, 8u), [&](uint32_t launch) {
    const uint32_t set = launch % sets;
    args.pages = table_pages.get() + size_t{set} * pages;
    return plan_only ? plan_attention_decode(shape, args, stream) : attention_decode(shape, args, stream);
  });
  report(state, seconds, bytes, plan_only, out);
}

void shapes(benchmark::internal::Benchmark* b) {
  for (const int calls : {1, 8, 32, 128}) {
    for (const int tokens : {2048, 8192, 32768}) {
      if (calls * tokens <= 128 * 8192) b->Args({calls, tokens});
    }
  }
  b->UseManualTime()->Iterations(25)->Unit(benchmark::kMicrosecond);
}
void ragged(benchmark::internal::Benchmark* b) {
  b->Args({8, 32768})->Args({32, 32768})->UseManualTime()->Iterations(25)->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(decode, uniform, uniform, false)->Apply(shapes);
BENCHMARK_CAPTURE(decode, one_hot, one_hot, false)->Apply(ragged);
BENCHMARK_CAPTURE(decode, ten_ninety, ten_ninety, false)->Apply(ragged);
BENCHMARK_CAPTURE(decode, plan, uniform, true)
    ->Args({1, 8192})
    ->Args({32, 8192})
    ->Args({128, 8192})
    ->UseManualTime()
    ->Iterations(25)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
