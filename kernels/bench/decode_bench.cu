// The decode kernel at the shapes of Llama-3.1-8B, one layer: time inside a CUDA graph, percent of the
// measured read ceiling of an H200 (4.69 TB/s), and a digest of the output.

#include <cstring>

#include "kernels/bench/decode_case.cuh"

namespace kvtwin::test {
namespace {

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

void decode(benchmark::State& state, Lengths lengths, bool plan_only, uint32_t of_eight = 0) {
  DecodeCase c(lengths, static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)), 132,
               of_eight);
  const DeviceArray<char> plan(decode_plan_bytes(c.shape));
  c.args.plan = plan.get();
  cudaStream_t stream = bench().stream;
  KVT_CUDA(plan_attention_decode(c.shape, c.args, stream));
  KVT_CUDA(attention_decode(c.shape, c.args, stream));
  KVT_CUDA(cudaStreamSynchronize(stream));
  const std::vector<double> seconds = replays(state, stream, std::max(c.sets, 8u), [&](uint32_t launch) {
    const DecodeArgs& args = c.turn(launch);
    return plan_only ? plan_attention_decode(c.shape, args, stream) : attention_decode(c.shape, args, stream);
  });
  report(state, seconds, c.bytes, plan_only, c.out);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({32, 16384});  // as many KV entries as ten_ninety at 32k
  for (const int requests : {1, 8, 32, 128}) {
    for (const int tokens : {2048, 8192, 32768}) {
      if (requests * tokens <= 128 * 8192) b->Args({requests, tokens});
    }
  }
  b->UseManualTime()->Iterations(25)->Unit(benchmark::kMicrosecond);
}
void ragged(benchmark::internal::Benchmark* b) {
  b->Args({8, 32768})->Args({32, 32768})->UseManualTime()->Iterations(25)->Unit(benchmark::kMicrosecond);
}
// Tables of KV entries: all of every page, every other one, one of eight.
void dropped_slots(benchmark::internal::Benchmark* b) {
  b->Args({1, 1400})->Args({8, 1400})->Args({32, 8192});
  b->UseManualTime()->Iterations(25)->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(decode, uniform, uniform, false)->Apply(shapes);
BENCHMARK_CAPTURE(decode, pages, uniform, false)
    ->Apply(dropped_slots);  // the same lengths with tables of pages
BENCHMARK_CAPTURE(decode, listed_all, uniform, false, 8)->Apply(dropped_slots);
BENCHMARK_CAPTURE(decode, listed_half, uniform, false, 4)->Apply(dropped_slots);
BENCHMARK_CAPTURE(decode, listed_eighth, uniform, false, 1)->Apply(dropped_slots);
BENCHMARK_CAPTURE(decode, one_hot, one_hot, false)->Apply(ragged);
BENCHMARK_CAPTURE(decode, ten_ninety, ten_ninety, false)->Apply(ragged);
// Steps that are padded to a captured size, beside the same steps without padding.
void beside_padding(benchmark::internal::Benchmark* b) {
  b->Args({5, 5000})->Args({12, 3000})->Args({35, 2048})->Args({100, 900});
  b->UseManualTime()->Iterations(25)->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(decode, alone, uniform, false)->Apply(beside_padding);
BENCHMARK_CAPTURE(decode, padded, padded, false)->Apply(beside_padding);
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
