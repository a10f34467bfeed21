// Whole steps of the CUDA engine on random weights: the time of a step as a server sees it (upload of the
// step's lists, all layers, download of the tokens), and the times of its operations.
//
// The lower bound of a step is its bytes (weights once, KV once) at the measured read ceiling of an H200,
// 4.69 TB/s, or its flops at cuBLAS's sustained bf16 rate, 790 TFLOP/s. Contexts are not computed: one page
// of real KV is copied to all pages.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/packed/packed.h"
#include "tests/bench/cuda_bench_model.h"

namespace {

using namespace kvtwin;
using namespace kvtwin::bench;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kSteps = 40, kWarm = 5;
constexpr double kCeiling = 4.69e12, kFlops = 790e12;

// The format of KV entries. int2 is KIVI's; then the copied page is not packed yet, and reads return what
// the memory held, which takes the same time.
struct Retained {
  Format format = Format::kBf16;
  uint32_t page() const { return format == Format::kBf16 ? 16 : 32; }
};

cuda::OwnedCache cache_of(const Retained& retained, const cuda::CudaEngineConfig& config,
                          const LlmSpec* llm) {
  if (retained.format == Format::kBf16) return nullptr;
  return must_be(cuda::make_packed(
      {.format = retained.format, .residual_tokens = retained.format == Format::kInt2 ? 128u : 0},
      {config.page_tokens, config.pages_gpu, 0, config.rows_max}, llm));
}

// `requests` concurrent decodes, each with its own pages.
class Server {
 public:
  // Each step has `rows` tokens of each request; if more than one, always the same chunk.
  Server(const cuda::DeviceModel& model, const LlmSpec& llm, uint32_t requests, uint32_t context,
         uint32_t rows, cuda::OperationLog* log, const Retained& retained, bool graphs = true)
      : tokens_(llm.vocab, context + rows, kWarm + kSteps),
        requests_(requests),
        rows_(rows),
        page_(retained.page()),
        context_(context) {
    const uint32_t each = (context + rows + kSteps + kWarm) / page_ + 2;
    cuda::CudaEngineConfig config;
    config.page_tokens = page_;
    config.pages_gpu = requests * each + 1;
    config.rows_max = std::max(requests * rows, page_), config.samples_max = requests;
    config.log = log;
    if (!graphs) config.graphs_max = 0;
    engine_ = must_be(cuda::CudaEngine::make(config, &model, &tokens_, cache_of(retained, config, &llm)));
    fill(config.pages_gpu);
    for (uint32_t i = 0; i < requests; ++i) {
      // Consecutive pages of a request are not adjacent.
      for (uint32_t p = 0; p < each; ++p) pages_.push_back(PageId{1 + p * requests + i});
    }
    each_ = each;
  }

  // Returns the time of one step in seconds.
  double step() {
    std::vector<PlanEntry> entries;
    std::vector<PrefixHit> prefix_hits;
    for (uint32_t i = 0; i < requests_; ++i) {
      const EntryKind kind = rows_ > 1 ? EntryKind::kChunk : EntryKind::kDecode;
      entries.push_back({RequestId{1 + i}, kind, first_, true, rows_, context_});
      if (first_) prefix_hits.push_back({RequestId{1 + i}, {pages_.data() + size_t{i} * each_, each_}});
    }
    first_ = false;
    const LaunchStep launch{.step = StepId{++step_},
                            .tokens = requests_ * rows_,
                            .entries = entries,
                            .allocations = {},
                            .prefix_hits = prefix_hits};
    const Clock::time_point start = Clock::now();
    engine_->step(launch, 0, &values_);
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    if (rows_ == 1) ++context_;
    for (const auto& sample : engine_->samples()) digest_ = draw({digest_, sample.token});
    return took;
  }
  uint64_t digest() const { return digest_; }
  double issued() const { return static_cast<double>(engine_->issued().ns) / 1e9; }

 private:
  // Writes one page of KV from the model to all pages.
  void fill(uint32_t pages) {
    const PlanEntry entry{RequestId{0}, EntryKind::kChunk, true, false, page_, 0};
    const PageAllocation allocation{0, 0, PageId{0}};
    engine_->step(
        {.tokens = page_, .entries = {&entry, 1}, .allocations = {&allocation, 1}, .prefix_hits = {}}, 0,
        &values_);
    std::vector<PageId> from(pages - 1), to;
    for (uint32_t p = 1; p < pages; ++p) to.push_back(PageId{p});
    engine_->notify(StartTransfer{.source = from, .target = to});
    engine_->notify(DropRequestState{{}, RequestId{0}, DropRequestState::Reason::kFinished});
  }

  DrawnTokens tokens_;
  std::unique_ptr<cuda::CudaEngine> engine_;
  std::vector<PageId> pages_;
  const uint32_t requests_, rows_, page_;
  uint32_t context_, each_ = 0;
  bool first_ = true;
  uint64_t step_ = 0, digest_ = 0;
  DataOutcomes values_;
};

// Microseconds per step of each kind of operation, medians over steps.
std::array<double, kOperations> operations(const cuda::DeviceModel& model, const LlmSpec& llm,
                                           uint32_t requests, uint32_t context, uint32_t rows,
                                           const Retained& retained) {
  cuda::OperationLog log(true);
  Server server(model, llm, requests, context, rows, &log, retained);
  std::array<std::vector<double>, kOperations> seen;
  for (uint32_t i = 0; i < kSteps; ++i) {
    server.step();
    std::array<double, kOperations> sum{};
    for (const cuda::OperationTime& one : log.take({}, StepId{i + 1}))
      sum[static_cast<size_t>(one.operation)] += static_cast<double>(one.to.ns - one.from.ns) / 1e3;
    for (size_t kind = 0; kind < sum.size() && i >= kWarm; ++kind) seen[kind].push_back(sum[kind]);
  }
  std::array<double, kOperations> out{};
  for (size_t kind = 0; kind < out.size(); ++kind) out[kind] = median(seen[kind]);
  return out;
}

// The time of the bytes or of the flops, whichever is longer.
double floor_s(const LlmSpec& llm, uint32_t requests, uint32_t context, uint32_t rows,
               const Retained& retained) {
  const WeightBytes weights = weight_bytes(llm, 1);
  const double matrices = weights.attention + weights.mlp;
  const PageShape page{retained.page(), llm.head_dim, 32};
  const double token =
      static_cast<double>(page_bytes(retained.format, page)) / page.page_tokens * llm.kv_heads * llm.layers;
  const double bytes = matrices + weights.lm_head + token * requests * (context + rows);
  const double new_rows = rows, kv_entries = new_rows * context + new_rows * (new_rows + 1) / 2;
  const double flops = requests * (matrices * rows + weights.lm_head +
                                   4.0 * llm.query_heads * llm.head_dim * llm.layers * kv_entries);
  return std::max(bytes / kCeiling, flops / kFlops);
}

// Medians over steps: the time of a step, and the part that launching took.
struct StepCost {
  double step = 0, issued = 0;
  uint64_t digest = 0;
};
StepCost steps(const cuda::DeviceModel& model, const LlmSpec& llm, uint32_t requests, uint32_t context,
               uint32_t rows, const Retained& retained, bool graphs) {
  Server server(model, llm, requests, context, rows, nullptr, retained, graphs);
  std::vector<double> took, issued;
  for (uint32_t i = 0; i < kWarm + kSteps; ++i) {
    const double one = server.step();
    if (i < kWarm) continue;
    took.push_back(one);
    issued.push_back(server.issued());
  }
  return {median(took), median(issued), server.digest()};
}

void step(benchmark::State& state, const char* name, uint32_t requests, uint32_t context, uint32_t rows,
          Retained retained = {}) {
  if (const Result<void> ok = cuda::check_gpu(); !ok) {
    state.SkipWithError(ok.error().text().c_str());
    return;
  }
  const LlmSpec& llm = model_named(name).llm;
  const cuda::DeviceModel& model = *model_named(name).device;
  for (auto unused : state) {
    StepCost with, without;
    with = steps(model, llm, requests, context, rows, retained, true);
    if (rows == 1) {  // chunks have no graphs
      without = steps(model, llm, requests, context, rows, retained, false);
      KVT_CHECK(with.digest == without.digest);
      state.counters["us step without graph"] = without.step * 1e6;
      state.counters["us issued without graph"] = without.issued * 1e6;
    }
    state.counters["digest32"] = static_cast<double>(with.digest & UINT32_MAX);
    state.counters["us issued"] = with.issued * 1e6;
    state.SetIterationTime(with.step);
    const auto each = operations(model, llm, requests, context, rows, retained);
    double sum = 0, main = 0;
    for (size_t kind = 0; kind < each.size(); ++kind) {
      const auto operation = static_cast<Operation>(kind);
      sum += each[kind];
      const bool product = operation == Operation::kQkv || operation == Operation::kAttentionOut ||
                           operation == Operation::kGateUp || operation == Operation::kDown ||
                           operation == Operation::kLogits;
      if (product || operation == Operation::kDecodeAttention || operation == Operation::kChunkAttention ||
          operation == Operation::kPackedAttention)
        main += each[kind];
      state.counters[std::string("us ") + name_of(operation)] = each[kind];
    }
    state.counters["us floor"] = floor_s(llm, requests, context, rows, retained) * 1e6;
    state.counters["us operations"] = sum;
    state.counters["step / (products + attention)"] = with.step * 1e6 / main;
  }
}

#define KVT_STEP(name, ...) \
  BENCHMARK_CAPTURE(step, name, __VA_ARGS__)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond)
KVT_STEP(8B_decode_1x8k, "llama-3.1-8b", 1, 8192, 1);
KVT_STEP(8B_decode_8x8k, "llama-3.1-8b", 8, 8192, 1);
KVT_STEP(8B_decode_32x8k, "llama-3.1-8b", 32, 8192, 1);
KVT_STEP(8B_decode_128x2k, "llama-3.1-8b", 128, 2048, 1);
KVT_STEP(8B_chunk_2048_of_2k, "llama-3.1-8b", 1, 0, 2048);
KVT_STEP(8B_chunk_2048_of_32k, "llama-3.1-8b", 1, 30720, 2048);
KVT_STEP(8B_chunk_8192_of_8k, "llama-3.1-8b", 1, 0, 8192);
KVT_STEP(8B_fp8_decode_32x8k, "llama-3.1-8b", 32, 8192, 1, Retained{Format::kFp8});
KVT_STEP(8B_int4_decode_32x8k, "llama-3.1-8b", 32, 8192, 1, Retained{Format::kInt4});
KVT_STEP(8B_fp4_decode_32x8k, "llama-3.1-8b", 32, 8192, 1, Retained{Format::kFp4});
KVT_STEP(8B_kivi_decode_32x8k, "llama-3.1-8b", 32, 8192, 1, Retained{Format::kInt2});
KVT_STEP(8B_int4_chunk_2048_of_32k, "llama-3.1-8b", 1, 30720, 2048, Retained{Format::kInt4});
KVT_STEP(32B_decode_8x8k, "qwen3-32b", 8, 8192, 1);

}  // namespace
