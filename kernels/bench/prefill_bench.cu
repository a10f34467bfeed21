// Prefill attention at the shapes of Llama-3.1-8B, one layer, against 790 TFLOP/s
// (kernels/attention/attention_prefill.h). Flops are those of visible KV entries: 4 * head_dim per (query
// head, row, KV entry).

#include <numeric>

#include "kernels/attention/attention_prefill.h"
#include "kernels/bench/replay.cuh"

namespace kvtwin::test {
namespace {

struct Request {
  uint32_t rows = 0;
  uint32_t past = 0;
};

void prefill(benchmark::State& state, const std::vector<Request>& requests, bool in_pages, uint32_t page,
             uint32_t dim, bool plan_only) {
  PrefillShape shape;
  shape.head_dim = dim, shape.page_tokens = page, shape.heads_per_page = shape.kv_heads;
  std::vector<PrefillSequence> rows;
  uint32_t pages = 0;
  double flops = 0;
  for (const Request& request : requests) {
    for (uint32_t h = 0; h < shape.kv_heads; ++h)
      rows.push_back({shape.rows, request.rows, h, request.past, pages, h});
    pages += (request.past + (in_pages ? request.rows : 0) + page - 1) / page;
    shape.rows += request.rows;
    flops +=
        4.0 * dim * shape.kv_heads * shape.group * request.rows * (request.past + (request.rows + 1) / 2.0);
  }
  const uint32_t heads = shape.kv_heads * shape.group, width = (heads + 2 * shape.kv_heads) * dim;
  shape.q_stride = shape.kv_stride = width;
  shape.sequences = static_cast<uint32_t>(rows.size());
  shape.pool_blocks = pages * shape.heads_per_page;
  std::vector<uint32_t> numbers(pages);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
  const DeviceArray<__nv_bfloat16> qkv = random_bf16(size_t{shape.rows} * width);
  const DeviceArray<__nv_bfloat16> pool = random_bf16(size_t{shape.pool_blocks} * 2 * page * dim);
  const DeviceArray<__nv_bfloat16> out(size_t{shape.rows} * heads * dim);
  const DeviceArray<uint32_t> table_pages(numbers);
  const DeviceArray<PrefillSequence> table(rows);
  const DeviceArray<char> plan(prefill_plan_bytes(shape));
  PrefillArgs args;
  args.pool = pool.get(), args.pages = table_pages.get(), args.table = table.get();
  args.q = qkv.get(), args.out = out.get(), args.plan = plan.get();
  args.scale = 1 / std::sqrt(static_cast<float>(dim));
  if (!in_pages) args.k = qkv.get() + size_t{heads} * dim, args.v = args.k + size_t{shape.kv_heads} * dim;
  KVT_CUDA(plan_attention_prefill(shape, args, nullptr));
  KVT_CUDA(cudaDeviceSynchronize());
  const auto launches = static_cast<uint32_t>(std::clamp(8e12 / flops, 1.0, 40.0));
  const double seconds = median_of_replays(state, launches, [&](uint32_t, cudaStream_t stream) {
    return plan_only ? plan_attention_prefill(shape, args, stream) : attention_prefill(shape, args, stream);
  });
  state.counters["us_median"] = seconds * 1e6;
  if (plan_only) return;
  state.counters["TFLOPs"] = flops / seconds / 1e12;
  state.counters["pct_ceiling"] = flops / seconds / kBf16Ceiling * 100;
  label_with_digest(state, out);
}

std::vector<Request> mixed() {
  std::vector<Request> out;
  for (uint32_t i = 0; i < 16; ++i) out.push_back({200 + i * 173, i % 3 == 0 ? 0 : i * 1111});
  return out;
}
const std::vector<Request> k2k = {{2048, 0}}, k8k = {{8192, 0}}, k32k = {{32768, 0}},
                           kChunk = {{2048, 30720}}, kShort = {{256, 32000}}, kBatch(4, {2048, 6144});

void times(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Iterations(11)->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(prefill, causal_2k, k2k, false, 16, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, causal_8k, k8k, false, 16, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, causal_32k, k32k, false, 16, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, causal_8k_in_pages_of_16, k8k, true, 16, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, causal_32k_in_pages_of_16, k32k, true, 16, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, causal_32k_in_pages_of_64, k32k, true, 64, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, chunk_2k_after_30k, kChunk, false, 16, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, chunk_256_after_32k, kShort, false, 16, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, four_2k_after_6k, kBatch, false, 16, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, sixteen_mixed, mixed(), false, 16, 128, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, head_64_causal_8k, k8k, false, 16, 64, false)->Apply(times);
BENCHMARK_CAPTURE(prefill, plan_8k, k8k, false, 16, 128, true)->Apply(times);
BENCHMARK_CAPTURE(prefill, plan_32k, k32k, false, 16, 128, true)->Apply(times);

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
