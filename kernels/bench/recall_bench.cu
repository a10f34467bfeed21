// Recall of 16 KB units from 2 GB of pinned memory: alone, and concurrently with decode attention of 32
// requests of 8k (Llama-3.1-8B, one layer, page 32). The ceiling is the copy engine's rate for large
// copies, 55.4 GB/s (docs/design/kernels.md#pcie).
//
// Concurrent: graphs of decodes run back to back; the recall starts after the first ones and ends before the
// last. Its rate is over its own time. The time of a decode is that of the graphs during the recall, against
// graphs of decodes on all SMs without a recall.
//
// Streamed: FreeKV's recall by copies and conversions (copied_recall.h), alone, by pages of each head; the
// floor is again bytes / 55.4 GB/s. `host_us` is what starting it takes the host.

#include <chrono>
#include <numeric>

#include "kernels/bench/replay.cuh"
#include "kernels/cache_ops/copied_recall.h"

namespace kvtwin::test {
namespace {

using kernels::HostPageLayout;

constexpr uint32_t kDim = 128, kKvHeads = 8, kGroup = 4, kPage = 32, kRequests = 32, kTokens = 8192;
constexpr uint32_t kHostPages = 16'384;           // of 128 KB
constexpr double kUnit = 2.0 * kPage * kDim * 2;  // bytes
constexpr double kCopyCeiling = 55.4e9;
constexpr uint32_t kSms = 132;

enum class CopyMethod : uint8_t { kKernel, kSpread, kStrided, kEachPiece };

// Pinned pages with random bytes, and moves of `count` random units to consecutive blocks.
struct Recall {
  __nv_bfloat16* pinned = nullptr;
  DeviceArray<__nv_bfloat16> pool;
  std::vector<RecallMove> moves;
  DeviceArray<RecallMove> list;
  DeviceArray<uint32_t> count;
  cudaStream_t stream{};

  explicit Recall(uint32_t units)
      : pool(size_t{units} * 2 * kPage * kDim), count(std::vector<uint32_t>{units}) {
    std::mt19937 random(7);
    for (uint32_t i = 0; i < units; ++i)
      moves.push_back(
          {static_cast<uint32_t>(random() % kHostPages), static_cast<uint32_t>(random() % kKvHeads), i});
    list = DeviceArray<RecallMove>(moves);
    int low = 0, high = 0;
    KVT_CUDA(cudaDeviceGetStreamPriorityRange(&low, &high));
    KVT_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high));
    pinned = host_pages();
  }
  Recall(const Recall&) = delete;
  ~Recall() { cudaStreamDestroy(stream); }

  static __nv_bfloat16* host_pages() {
    static __nv_bfloat16* const pages = [] {
      void* out = nullptr;
      const size_t numbers = size_t{kHostPages} * kKvHeads * 2 * kPage * kDim;
      KVT_CUDA(cudaMallocHost(&out, numbers * 2));
      const auto random = random_bf16(numbers);
      KVT_CUDA(cudaMemcpy(out, random.get(), numbers * 2, cudaMemcpyDeviceToHost));
      return static_cast<__nv_bfloat16*>(out);
    }();
    return pages;
  }
  double bytes() const { return kUnit * static_cast<double>(moves.size()); }

  HostPool host(HostPageLayout layout) const {
    return {pinned, uint64_t{kKvHeads} * 2 * kPage * kDim, layout, kPage, kKvHeads, kDim};
  }
  void start(CopyMethod way, HostPageLayout layout, uint32_t ctas, uint32_t burst_ns = 0) const {
    const HostPool host = this->host(layout);
    if (way == CopyMethod::kKernel || way == CopyMethod::kSpread) {
      KVT_CUDA(recall_pages(
          {host, pool.get(), list.get(), count.get(), ctas, way == CopyMethod::kSpread, burst_ns}, stream));
    } else {
      KVT_CUDA(copy_recalled(host, way == CopyMethod::kStrided ? HostCopy::kStrided : HostCopy::kEachPiece,
                             pool.get(), moves, stream));
    }
  }
};

struct Event {
  cudaEvent_t event{};
  Event() { KVT_CUDA(cudaEventCreate(&event)); }
  Event(const Event&) = delete;
  ~Event() { cudaEventDestroy(event); }
  void record(cudaStream_t stream) const { KVT_CUDA(cudaEventRecord(event, stream)); }
  double since(const Event& before) const {
    float ms = 0;
    KVT_CUDA(cudaEventElapsedTime(&ms, before.event, event));
    return static_cast<double>(ms) / 1e3;
  }
};

void report(benchmark::State& state, double bytes, const std::vector<double>& seconds) {
  const double rate = bytes / median(seconds);
  state.counters["us_median"] = median(seconds) * 1e6;
  state.counters["MB"] = bytes / 1e6;
  state.counters["GBps"] = rate / 1e9;
  state.counters["pct_ceiling"] = rate / kCopyCeiling * 100;
}

void alone(benchmark::State& state, CopyMethod way, HostPageLayout layout) {
  const auto ctas = static_cast<uint32_t>(state.range(0)), units = static_cast<uint32_t>(state.range(1));
  const Recall recall(units);
  const Event begin, end;
  std::vector<double> seconds;
  for (int i = 0; i < 2; ++i) recall.start(way, layout, ctas);
  for (auto _ : state) {
    begin.record(recall.stream);
    recall.start(way, layout, ctas);
    end.record(recall.stream);
    KVT_CUDA(cudaStreamSynchronize(recall.stream));
    seconds.push_back(end.since(begin));
    state.SetIterationTime(seconds.back());
  }
  report(state, recall.bytes(), seconds);
  label_with_digest(state, recall.pool);
}

// range: heads of requests, pages of each.
void streamed(benchmark::State& state, HostPageLayout pool_layout, uint32_t buffers, bool batched) {
  const auto heads = static_cast<uint32_t>(state.range(0)), pages = static_cast<uint32_t>(state.range(1));
  const Recall recall(heads * pages);
  const DeviceArray<__nv_bfloat16> staging(size_t{2} * pages * 2 * kPage * kDim);
  RecallMove* moves = nullptr;
  KVT_CUDA(cudaMallocHost(&moves, recall.moves.size() * sizeof *moves));
  std::copy(recall.moves.begin(), recall.moves.end(), moves);
  StreamedRecall args{.host = recall.host(HostPageLayout::kHnd), .pool = recall.pool.get()};
  args.pool_layout = pool_layout, args.staged_max = pages, args.buffers = buffers, args.batched = batched;
  args.streams[0] = recall.stream;
  KVT_CUDA(cudaStreamCreateWithFlags(&args.streams[1], cudaStreamNonBlocking));
  for (uint32_t i = 0; i < 2; ++i) args.staging[i] = staging.get() + size_t{i} * pages * 2 * kPage * kDim;
  KVT_CUDA(cudaEventCreateWithFlags(&args.begun, cudaEventDisableTiming));
  KVT_CUDA(cudaEventCreateWithFlags(&args.ended, cudaEventDisableTiming));
  const std::vector<uint32_t> counts(heads, pages);
  const Event begin, end;
  std::vector<double> seconds, host;
  for (auto _ : state) {
    begin.record(recall.stream);
    const auto start = std::chrono::steady_clock::now();
    KVT_CUDA(stream_recalled(args, moves, counts));
    host.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    end.record(recall.stream);
    KVT_CUDA(cudaStreamSynchronize(recall.stream));
    seconds.push_back(end.since(begin));
    state.SetIterationTime(seconds.back());
  }
  report(state, recall.bytes(), seconds);
  state.counters["host_us"] = median(host) * 1e6;
  label_with_digest(state, recall.pool);
  cudaStreamDestroy(args.streams[1]), cudaEventDestroy(args.begun), cudaEventDestroy(args.ended);
  cudaFreeHost(moves);
}

// Graphs of decodes, each over different pages than the one before.
struct Decodes {
  static constexpr uint32_t kOfGraph = 8, kGraphs = 24;

  DeviceArray<__nv_bfloat16> pool, q, out;
  DeviceArray<uint32_t> pages;
  DeviceArray<DecodeSequence> table;
  DeviceArray<char> plan, workspace;
  cudaStream_t stream{};
  cudaGraphExec_t graph{};
  Event scorer_state[kGraphs + 1];

  explicit Decodes(uint32_t ctas) {
    constexpr uint32_t kSequences = kRequests * kKvHeads, kPages = kSequences * (kTokens / kPage), kSets = 4;
    std::vector<uint32_t> numbers(size_t{kPages} * kSets);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
    std::vector<DecodeSequence> rows;
    for (uint32_t i = 0; i < kSequences; ++i) rows.push_back({i * kGroup, i * (kTokens / kPage), kTokens, 0});
    const DecodeShape shape{kDim, kGroup, kPage, 1, kSequences, ctas};
    pool = random_bf16(numbers.size() * 2 * kPage * kDim);
    q = random_bf16(size_t{kSequences} * kGroup * kDim);
    out = DeviceArray<__nv_bfloat16>(size_t{kSequences} * kGroup * kDim);
    pages = DeviceArray<uint32_t>(numbers);
    table = DeviceArray<DecodeSequence>(rows);
    plan = DeviceArray<char>(decode_plan_bytes(shape));
    workspace = DeviceArray<char>(std::vector<char>(decode_workspace_bytes(shape), 0));
    DecodeArgs args{pool.get(), pages.get(), table.get(), q.get(),
                    out.get(),  0.0883883f,  plan.get(),  workspace.get()};
    KVT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    KVT_CUDA(plan_attention_decode(shape, args, stream));
    cudaGraph_t made;
    KVT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < kOfGraph; ++i) {
      args.pages = pages.get() + size_t{i % kSets} * kPages;
      KVT_CUDA(attention_decode(shape, args, stream));
    }
    KVT_CUDA(cudaStreamEndCapture(stream, &made));
    KVT_CUDA(cudaGraphInstantiate(&graph, made, 0));
    KVT_CUDA(cudaGraphDestroy(made));
    KVT_CUDA(cudaStreamSynchronize(stream));
  }
  Decodes(const Decodes&) = delete;
  ~Decodes() { cudaGraphExecDestroy(graph), cudaStreamDestroy(stream); }

  // Launches all graphs, and calls `concurrent` in between.
  template <typename Concurrent>
  void run(const Concurrent& concurrent) const {
    scorer_state[0].record(stream);
    for (uint32_t i = 0; i < kGraphs; ++i) {
      KVT_CUDA(cudaGraphLaunch(graph, stream));
      scorer_state[i + 1].record(stream);
    }
    concurrent();
  }
};

double decode_alone() {
  static const double seconds = [] {
    const Decodes decodes(kSms);
    std::vector<double> each;
    for (int i = 0; i < 3; ++i) {
      decodes.run([] {});
      KVT_CUDA(cudaStreamSynchronize(decodes.stream));
      for (uint32_t g = 2; g < Decodes::kGraphs; ++g)
        each.push_back(decodes.scorer_state[g + 1].since(decodes.scorer_state[g]) / Decodes::kOfGraph);
    }
    return median(each);
  }();
  return seconds;
}

// range: CTAs (spread: warps) of the recall, SMs that decode leaves idle, MB of the recall, ns between
// bursts.
void concurrent(benchmark::State& state, CopyMethod way) {
  const auto ctas = static_cast<uint32_t>(state.range(0)), left_out = static_cast<uint32_t>(state.range(1));
  const auto burst_ns = static_cast<uint32_t>(state.range(3));
  const double one = decode_alone();
  const Decodes decodes(kSms - left_out);
  const Recall recall(static_cast<uint32_t>(state.range(2)) << 6);  // 64 units of 16 KB per MB
  const Event begin, end;
  std::vector<double> each, seconds;
  bool within = true;
  recall.start(way, HostPageLayout::kHnd, ctas, burst_ns);  // loading a kernel waits for running ones
  KVT_CUDA(cudaDeviceSynchronize());
  for (auto _ : state) {
    decodes.run([&] {
      KVT_CUDA(cudaStreamWaitEvent(recall.stream, decodes.scorer_state[2].event));
      begin.record(recall.stream);
      recall.start(way, HostPageLayout::kHnd, ctas, burst_ns);
      end.record(recall.stream);
    });
    KVT_CUDA(cudaDeviceSynchronize());
    seconds.push_back(end.since(begin));
    state.SetIterationTime(seconds.back());
    if (decodes.scorer_state[Decodes::kGraphs].since(end) < 0) within = false;
    for (uint32_t g = 0; g < Decodes::kGraphs; ++g) {
      if (decodes.scorer_state[g].since(begin) > 0 && end.since(decodes.scorer_state[g + 1]) > 0)
        each.push_back(decodes.scorer_state[g + 1].since(decodes.scorer_state[g]) / Decodes::kOfGraph);
    }
  }
  if (!within || each.empty())
    return state.SkipWithError("the recall outlasted the decodes, or none is within it");
  report(state, recall.bytes(), seconds);
  state.counters["decode_us"] = median(each) * 1e6;
  state.counters["decode_alone_us"] = one * 1e6;
  state.counters["slower_pct"] = (median(each) / one - 1) * 100;
  label_with_digest(state, recall.pool);
}

// Without a recall: the cost of leaving SMs idle.
void left_out(benchmark::State& state) {
  const Decodes decodes(kSms - static_cast<uint32_t>(state.range(0)));
  std::vector<double> each;
  for (auto _ : state) {
    decodes.run([] {});
    KVT_CUDA(cudaStreamSynchronize(decodes.stream));
    for (uint32_t g = 2; g < Decodes::kGraphs; ++g)
      each.push_back(decodes.scorer_state[g + 1].since(decodes.scorer_state[g]) / Decodes::kOfGraph);
    state.SetIterationTime(each.back());
  }
  state.counters["decode_us"] = median(each) * 1e6;
  state.counters["slower_pct"] = (median(each) / decode_alone() - 1) * 100;
}

void stage(benchmark::State& state, HostPageLayout layout) {
  constexpr uint32_t kPages = 512, kSets = 4;
  const HostPool host{nullptr, 0, layout, kPage, kKvHeads, kDim};
  const auto pool = random_bf16(size_t{kPages} * kSets * host.page_numbers());
  const DeviceArray<__nv_bfloat16> staging(size_t{kPages} * kSets * host.page_numbers());
  std::vector<uint32_t> pages(kPages * kSets);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(2));
  const DeviceArray<uint32_t> list(pages);
  const double seconds = median_of_replays(state, 8, [&](uint32_t i, cudaStream_t stream) {
    const size_t set = i % kSets * kPages;
    return stage_pages(
        {pool.get(), list.get() + set, staging.get() + set * host.page_numbers(), host, kPages}, stream);
  });
  const double bytes = 4.0 * kPages * static_cast<double>(host.page_numbers());
  state.counters["us_median"] = seconds * 1e6, state.counters["MB"] = bytes / 1e6;
  state.counters["GBps"] = bytes / seconds / 1e9;
  state.counters["pct_ceiling"] = bytes / seconds / kReadCeiling * 100;
  label_with_digest(state, staging);
}

void times(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Iterations(7)->Unit(benchmark::kMicrosecond);
}
void kernel_alone(benchmark::internal::Benchmark* b) {
  times(b->Args({1, 8192})->Args({2, 8192})->Args({3, 8192})->Args({4, 8192})->Args({2, 64})->Args({4, 64}));
}
void engine_alone(benchmark::internal::Benchmark* b) { times(b->Args({0, 8192})->Args({0, 64})); }
BENCHMARK_CAPTURE(alone, kernel_hnd, CopyMethod::kKernel, HostPageLayout::kHnd)->Apply(kernel_alone);
BENCHMARK_CAPTURE(alone, kernel_nhd, CopyMethod::kKernel, HostPageLayout::kNhd)->Apply(kernel_alone);
BENCHMARK_CAPTURE(alone, spread_hnd, CopyMethod::kSpread, HostPageLayout::kHnd)
    ->Args({70, 8192})
    ->Args({132, 8192})
    ->Apply(times);
BENCHMARK_CAPTURE(alone, spread_nhd, CopyMethod::kSpread, HostPageLayout::kNhd)
    ->Args({70, 8192})
    ->Args({132, 8192})
    ->Apply(times);
BENCHMARK_CAPTURE(alone, copies_hnd, CopyMethod::kStrided, HostPageLayout::kHnd)->Apply(engine_alone);
BENCHMARK_CAPTURE(alone, strided_nhd, CopyMethod::kStrided, HostPageLayout::kNhd)->Apply(engine_alone);
BENCHMARK_CAPTURE(alone, pieces_nhd, CopyMethod::kEachPiece, HostPageLayout::kNhd)->Apply(engine_alone);
void heads_and_pages(benchmark::internal::Benchmark* b) {
  times(b->Args({256, 32})->Args({256, 6})->Args({256, 1})->Args({8, 32})->Args({8, 1}));
}
BENCHMARK_CAPTURE(streamed, nhd_two_buffers, HostPageLayout::kNhd, 2, false)->Apply(heads_and_pages);
BENCHMARK_CAPTURE(streamed, nhd_one_buffer, HostPageLayout::kNhd, 1, false)->Apply(heads_and_pages);
BENCHMARK_CAPTURE(streamed, nhd_two_buffers_batched, HostPageLayout::kNhd, 2, true)->Apply(heads_and_pages);
BENCHMARK_CAPTURE(streamed, nhd_one_buffer_batched, HostPageLayout::kNhd, 1, true)->Apply(heads_and_pages);
BENCHMARK_CAPTURE(streamed, blocks_two_buffers, HostPageLayout::kHnd, 2, false)->Apply(heads_and_pages);
BENCHMARK_CAPTURE(streamed, blocks_one_buffer, HostPageLayout::kHnd, 1, false)->Apply(heads_and_pages);
BENCHMARK(left_out)->Arg(0)->Arg(1)->Arg(2)->Arg(4)->Apply(times);
BENCHMARK_CAPTURE(concurrent, kernel, CopyMethod::kKernel)
    ->Args({2, 2, 384, 0})
    ->Args({4, 4, 512, 0})
    ->Args({6, 6, 768, 0})
    ->Args({8, 8, 768, 0})
    ->Apply(times);
BENCHMARK_CAPTURE(concurrent, spread, CopyMethod::kSpread)
    ->Args({40, 0, 256, 0})
    ->Args({50, 0, 384, 0})
    ->Args({70, 0, 512, 0})
    ->Args({80, 0, 512, 0})
    ->Args({99, 0, 512, 0})
    ->Args({132, 0, 512, 0})
    ->Args({99, 4, 512, 0})
    ->Args({112, 4, 512, 0})
    ->Args({132, 4, 512, 0})
    ->Args({132, 0, 512, 25'500})
    ->Args({132, 0, 512, 26'500})
    ->Args({132, 0, 512, 27'000})
    ->Apply(times);
BENCHMARK_CAPTURE(concurrent, copies, CopyMethod::kStrided)->Args({0, 0, 128, 0})->Apply(times);
BENCHMARK_CAPTURE(stage, hnd, HostPageLayout::kHnd)->Apply(times);
BENCHMARK_CAPTURE(stage, nhd, HostPageLayout::kNhd)->Apply(times);

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
