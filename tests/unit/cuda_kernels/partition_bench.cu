// Ways to split a decode step's work (docs/design/methods/tangram.md#partitions,
// kernels/grids/partition.h), on the same kernel: the splits of every planner, one CTA each, against the
// kernel's own split on the device. Llama-3.1-8B, one layer, bf16.
//
// The planners are the policy's, which the simulator prices; the host's planning time is reported next to
// the kernel's time. An SM holds one CTA, so the grid has as many CTAs as there are SMs.

#include <chrono>

#include "kernels/attention/decode_splits.h"
#include "kernels/bench/decode_case.cuh"
#include "kernels/grids/partition.h"

namespace kvtwin::test {
namespace {

constexpr uint32_t kSms = 132;

struct Pieces {
  std::vector<DecodeSplit> list;
  double host_seconds = 0;
};

// AOT gets the real lengths, which is the best that a calibration could give.
Pieces cut(PartitionKind kind, const std::vector<uint32_t>& lengths) {
  std::vector<SplitRow> rows;
  for (const uint32_t kv_entries : lengths)
    rows.push_back({kv_entries, 4 * kDim, uint64_t{kv_entries} * 4 * kDim, 1});
  PartitionSpec spec;
  spec.uniform_splits = 0;
  std::vector<SplitItem> plan;
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    plan_partition(kind, spec, {kSms, 1, kPage}, rows, &plan);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  Pieces out{{}, median(seconds)};
  for (const SplitItem& item : plan) out.list.push_back({item.row, item.begin, item.end});
  return out;
}

void report(benchmark::State& state, const std::vector<double>& seconds, const DecodeCase& c, size_t pieces) {
  const double typical = median(seconds);
  state.counters["us_median"] = typical * 1e6;
  state.counters["floor_us"] = c.bytes / kReadCeiling * 1e6;
  state.counters["pct_ceiling"] = c.bytes / kReadCeiling / typical * 100;
  state.counters["pieces"] = static_cast<double>(pieces);
  label_with_digest(state, c.out);
}

void own(benchmark::State& state, Lengths lengths) {
  DecodeCase c(lengths, static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)), kSms);
  const DeviceArray<char> plan(decode_plan_bytes(c.shape));
  c.args.plan = plan.get();
  cudaStream_t stream = bench().stream;
  KVT_CUDA(plan_attention_decode(c.shape, c.args, stream));
  report(state,
         replays(state, stream, std::max(c.sets, 8u),
                 [&](uint32_t launch) { return attention_decode(c.shape, c.turn(launch), stream); }),
         c, kSms);
}

// The largest difference from the result of the kernel's own split, both rounded to bf16.
double off(const DecodeCase& c, const std::vector<__nv_bfloat16>& got) {
  const DeviceArray<char> plan(decode_plan_bytes(c.shape));
  DecodeArgs args = c.args;
  DecodeShape shape = c.shape;
  shape.ctas = kSms, args.plan = plan.get();
  KVT_CUDA(plan_attention_decode(shape, args, bench().stream));
  KVT_CUDA(attention_decode(shape, args, bench().stream));
  KVT_CUDA(cudaStreamSynchronize(bench().stream));
  const auto expected = c.out.read();
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference =
        static_cast<double>(__bfloat162float(got[i])) - static_cast<double>(__bfloat162float(expected[i]));
    worst = std::isnan(difference) ? INFINITY : std::max(worst, std::abs(difference));
  }
  return worst;
}

void partition(benchmark::State& state, PartitionKind kind, Lengths lengths) {
  const auto requests = static_cast<uint32_t>(state.range(0)), tokens = static_cast<uint32_t>(state.range(1));
  const Pieces pieces = cut(kind, lengths(requests, tokens));
  DecodeCase c(lengths, requests, tokens, static_cast<uint32_t>(pieces.list.size()));
  const DeviceArray<DecodeSplit> list(pieces.list);
  const DeviceArray<char> plan(decode_splits_bytes(c.shape));
  c.args.plan = plan.get();
  cudaStream_t stream = bench().stream;
  KVT_CUDA(plan_decode_splits(c.shape, c.args, list.get(), stream));
  const auto seconds = replays(state, stream, std::max(c.sets, 8u), [&](uint32_t launch) {
    return attention_decode_splits(c.shape, c.turn(launch), stream);
  });
  report(state, seconds, c, pieces.list.size());
  state.counters["host_plan_us"] = pieces.host_seconds * 1e6;
  state.counters["off"] = off(c, c.out.read());
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({1, 32768})->Args({8, 32768})->Args({32, 8192})->Args({32, 32768});
  b->UseManualTime()->Iterations(9)->Unit(benchmark::kMicrosecond);
}
#define KVT_PARTITIONS(lengths)                                                                           \
  BENCHMARK_CAPTURE(own, lengths, lengths)->Apply(shapes);                                                \
  BENCHMARK_CAPTURE(partition, uniform_##lengths, PartitionKind::kUniform, lengths)->Apply(shapes);       \
  BENCHMARK_CAPTURE(partition, flash_decoding_##lengths, PartitionKind::kFlashDecoding, lengths)          \
      ->Apply(shapes);                                                                                    \
  BENCHMARK_CAPTURE(partition, flashinfer_##lengths, PartitionKind::kFlashInfer, lengths)->Apply(shapes); \
  BENCHMARK_CAPTURE(partition, aot_##lengths, PartitionKind::kAotFractions, lengths)->Apply(shapes)
KVT_PARTITIONS(uniform);
KVT_PARTITIONS(one_hot);
KVT_PARTITIONS(ten_ninety);

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
