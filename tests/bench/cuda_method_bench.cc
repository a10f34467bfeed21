// Decode steps of methods on the CUDA engine with random weights: the time of a step, replayed as a graph
// and launched without one, with the same engine settings, in sequence.
//
// Quest, FreeKV: all requests start with copies of one prompt of 8,192 tokens. FreeKV's outcomes are forced:
// it corrects no head and recalls 2 % of the selected pages, after attention. ShadowKV, InfiniGen: prompts of
// their own, directions that are unit vectors, choices and recalls as the random weights give them. SnapKV:
// requests have the length that a budget retains; no entry is dropped. KIVI: cuda_step_bench.

#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <vector>

#include "engine/base/check.h"
#include "engine/cuda/caches.h"
#include "engine/cuda/retrieval/retrieved.h"
#include "kernels/scoring/score.h"
#include "tests/bench/cuda_bench_model.h"
#include "tests/support/retrieval_names.h"

namespace {

using namespace kvtwin;
using kvtwin::testing::kFreekv;
using kvtwin::testing::kInfinigen;
using kvtwin::testing::kQuest;
using kvtwin::testing::kReadAll;
using kvtwin::testing::kShadowkv;
using kvtwin::testing::RetrievalName;
using namespace kvtwin::bench;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kPage = 16, kChunk = 2048, kTail = 16, kWarm = 8, kSteps = 48;

struct Shape {
  RetrievalName method = kReadAll;  // all: SnapKV
  uint32_t requests = 32, context = 8192;
  RecallCopies copies = recall_copies(kFreekv);
};

// Room for all requests, each with its own pages, and for one more, whose prompt is computed.
class MethodServer {
 public:
  MethodServer(const NamedModel& model, const Shape& shape, bool graphs)
      : shape_(shape),
        layers_(model.llm.layers),
        tokens_(model.llm.vocab, shape.context + kTail, kWarm + kSteps),
        each_(div_ceil(shape.context + kTail + kWarm + kSteps, kPage) + 1) {
    config_.page_tokens = kPage;
    config_.pages_gpu = (shape.requests + 1) * each_ + 1;
    config_.pages_host = resident() ? each_ + shape.requests * own_host_copies() : 0;
    config_.rows_max = kChunk, config_.samples_max = shape.requests;
    if (!graphs) config_.graphs_max = 0;
    engine_ = must_be(cuda::CudaEngine::make(config_, model.device.get(), &tokens_, make_cache(model)));
    alone() ? begin_alone() : begin_with_copies();
    context_ = shape.context + kTail;
  }

  // Returns the time of one step in seconds.
  double step() {
    std::vector<PlanEntry> entries;
    std::vector<PageAllocation> allocations;
    for (uint32_t i = 0; i < shape_.requests; ++i) {
      entries.push_back({RequestId{1 + i}, EntryKind::kDecode, false, true, 1, context_});
      if (context_ % kPage == 0) allocation(i, context_ / kPage, i, &allocations);
    }
    DataOutcomes given;
    for (uint32_t l = 0; resident() && l < layers_; ++l) {
      LayerRecall& one = given.recalls.emplace_back(last_.empty() ? LayerRecall{} : last_[l]);
      one.blocking = one.corrected = 0, one.background = one.chosen / 50;
    }
    engine_->force_outcomes(last_.empty() ? nullptr : &given);
    const Clock::time_point start = Clock::now();
    run(entries, allocations, {});
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    ++context_;
    last_ = values_.recalls;
    for (const auto& sample : engine_->samples()) digest_ = draw({digest_, sample.token});
    return took;
  }
  uint64_t digest() const { return digest_; }
  uint64_t replays() const { return engine_->graph_replays(); }
  double issued() const { return static_cast<double>(engine_->issued().ns) / 1e9; }

 private:
  bool resident() const { return recalls(shape_.method); }
  // ShadowKV, InfiniGen: kept rows of prefixes would be part of their steps.
  bool factored() const { return resident() && shape_.method != kFreekv; }
  bool alone() const { return shape_.method == kReadAll || factored(); }

  cuda::OwnedCache make_cache(const NamedModel& model) const {
    const cuda::KvMemory memory{kPage, config_.pages_gpu, config_.pages_host, config_.rows_max};
    if (shape_.method != kReadAll) {
      RetrievalSpec spec = retrieval_defaults(shape_.method);
      return must_be(
          cuda::make_retrieved({.kind = shape_.method,
                                .spec = spec,
                                .copies = factored() ? recall_copies(shape_.method) : shape_.copies,
                                .unit_directions = true,
                                .prefix_cache = !alone()},
                               memory, model.llm));
    }
    CoreConfig core;
    core.page_tokens = kPage, core.pages_gpu = config_.pages_gpu, core.requests_max = shape_.requests + 1;
    core.step_tokens_max = kChunk, core.prefix_cache = false;
    PolicySet& set = core.policies;
    set.scorer = "snapkv", set.budget = "uniform", set.layout = "compact", set.identity = "none";
    set.layout_spec.layers = model.llm.layers, set.layout_spec.kv_heads = model.llm.kv_heads;
    cuda::CompressedOptions options;
    options.config.core = core;
    options.config.score = kernels::score_spec("snapkv");
    return must_be(cuda::make_compressed(options, memory, model.weights.get()));
  }

  // Page `number` of request 1 + request. Consecutive pages of a request are not adjacent.
  PageId page(uint32_t request, uint32_t number) const {
    return PageId{1 + number * (shape_.requests + 1) + request};
  }
  // The common prompt has one set of host pages.
  uint32_t shared_pages() const { return alone() ? 0 : shape_.context / kPage; }
  uint32_t own_host_copies() const { return each_ - shared_pages(); }
  PageId host_copy(uint32_t request, uint32_t number) const {
    const uint32_t shared = shared_pages();
    const uint32_t at = request == shape_.requests || number < shared
                            ? number
                            : each_ + request * own_host_copies() + number - shared;
    return PageId{config_.pages_gpu + at};
  }
  void allocation(uint32_t request, uint32_t number, uint32_t entry,
                  std::vector<PageAllocation>* allocations) const {
    allocations->push_back({0, entry, page(request, number)});
    if (resident()) allocations->push_back({0, entry, host_copy(request, number)});
  }
  void run(const std::vector<PlanEntry>& entries, const std::vector<PageAllocation>& allocations,
           const std::vector<PrefixHit>& prefix_hits) {
    uint32_t rows = 0;
    for (const PlanEntry& entry : entries) rows += entry.tokens;
    engine_->step({.step = StepId{++step_},
                   .tokens = rows,
                   .entries = entries,
                   .allocations = allocations,
                   .prefix_hits = prefix_hits},
                  0, &values_);
  }
  // Computes `tokens` tokens of request 1 + request from `context` on, in chunks.
  void prefill(uint32_t request, uint32_t tokens, bool samples) {
    for (uint32_t at = 0; at < tokens; at += kChunk) {
      const uint32_t count = std::min(kChunk, tokens - at);
      std::vector<PageAllocation> allocations;
      for (uint32_t p = at / kPage; p < div_ceil(at + count, kPage); ++p)
        allocation(request, p, 0, &allocations);
      run({{RequestId{1 + request}, EntryKind::kChunk, at == 0, samples && at + count == tokens, count, at}},
          allocations, {});
    }
  }
  void begin_alone() {
    for (uint32_t i = 0; i < shape_.requests; ++i) prefill(i, shape_.context + kTail, true);
  }
  void begin_with_copies() {
    const uint32_t pages = shape_.context / kPage, model = shape_.requests;
    prefill(model, shape_.context, false);
    std::vector<PlanEntry> entries;
    std::vector<PageAllocation> allocations;
    std::vector<PrefixHit> prefix_hits;
    std::vector<std::vector<PageId>> reused(shape_.requests);
    for (uint32_t i = 0; i < shape_.requests; ++i) {
      std::vector<PageId> from, to;
      for (uint32_t p = 0; p < pages; ++p) {
        from.push_back(resident() ? host_copy(model, p) : page(model, p)), to.push_back(page(i, p));
      }
      engine_->notify(
          StartTransfer{.source_tier = resident() ? Tier::kHost : Tier::kGpu, .source = from, .target = to});
      if (resident()) reused[i] = from;
      reused[i].insert(reused[i].end(), to.begin(), to.end());
      entries.push_back({RequestId{1 + i}, EntryKind::kChunk, true, true, kTail, shape_.context});
      allocation(i, pages, i, &allocations);
      prefix_hits.push_back({RequestId{1 + i}, reused[i]});
    }
    run(entries, allocations, prefix_hits);
    engine_->notify(DropRequestState{{}, RequestId{1 + model}, DropRequestState::Reason::kFinished});
  }

  const Shape shape_;
  const uint32_t layers_;
  DrawnTokens tokens_;
  const uint32_t each_;  // pages of a request
  cuda::CudaEngineConfig config_;
  std::unique_ptr<cuda::CudaEngine> engine_;
  uint32_t context_ = 0;
  uint64_t step_ = 0, digest_ = 0;
  DataOutcomes values_;
  std::vector<LayerRecall> last_;
};

struct StepCost {
  double step = 0, issued = 0;
  uint64_t digest = 0, replays = 0;
};
StepCost steps(const NamedModel& model, const Shape& shape, bool graphs) {
  MethodServer server(model, shape, graphs);
  std::vector<double> took, issued;
  for (uint32_t i = 0; i < kWarm + kSteps; ++i) {
    const double one = server.step();
    if (i < kWarm) continue;
    took.push_back(one), issued.push_back(server.issued());
  }
  return {median(took), median(issued), server.digest(), server.replays()};
}

void method_step(benchmark::State& state, const char* name, Shape shape) {
  if (const Result<void> ok = cuda::check_gpu(); !ok) {
    state.SkipWithError(ok.error().text().c_str());
    return;
  }
  const NamedModel& model = model_named(name);
  for (auto unused : state) {
    // Else the host starts copies, or keeps factors.
    const bool repeats =
        shape.copies.copy == HostCopy::kKernel && (!recalls(shape.method) || shape.method == kFreekv);
    const StepCost with = steps(model, shape, true), without = repeats ? steps(model, shape, false) : with;
    KVT_CHECK(with.digest == without.digest && without.replays == 0);
    KVT_CHECK(!repeats || with.replays > kSteps / 2);
    state.SetIterationTime(with.step);
    state.counters["us issued"] = with.issued * 1e6;
    state.counters["us step without graph"] = without.step * 1e6;
    state.counters["us issued without graph"] = without.issued * 1e6;
    state.counters["replays"] = static_cast<double>(with.replays);
    state.counters["digest32"] = static_cast<double>(with.digest & UINT32_MAX);
  }
}

#define KVT_METHOD(name, ...)                       \
  BENCHMARK_CAPTURE(method_step, name, __VA_ARGS__) \
      ->UseManualTime()                             \
      ->Iterations(1)                               \
      ->Unit(benchmark::kMicrosecond)
KVT_METHOD(8B_quest_32x8k, "llama-3.1-8b", Shape{kQuest});
KVT_METHOD(8B_freekv_32x8k, "llama-3.1-8b", Shape{kFreekv});
KVT_METHOD(8B_freekv_hnd_copies_32x8k, "llama-3.1-8b",
           Shape{.method = kFreekv, .copies = {HostPageLayout::kHnd, HostCopy::kStrided, 2}});
KVT_METHOD(8B_freekv_hnd_copies_one_buffer_32x8k, "llama-3.1-8b",
           Shape{.method = kFreekv, .copies = {HostPageLayout::kHnd, HostCopy::kStrided, 1}});
KVT_METHOD(8B_freekv_nhd_strided_32x8k, "llama-3.1-8b",
           Shape{.method = kFreekv, .copies = {HostPageLayout::kNhd, HostCopy::kStrided, 1}});
KVT_METHOD(8B_freekv_nhd_each_piece_32x8k, "llama-3.1-8b",
           Shape{.method = kFreekv, .copies = {HostPageLayout::kNhd, HostCopy::kEachPiece, 1}});
KVT_METHOD(8B_freekv_1x8k, "llama-3.1-8b", Shape{kFreekv, 1});
KVT_METHOD(8B_shadowkv_4x4k, "llama-3.1-8b", Shape{kShadowkv, 4, 4096});
KVT_METHOD(8B_infinigen_4x4k, "llama-3.1-8b", Shape{kInfinigen, 4, 4096});
KVT_METHOD(8B_snapkv_32x1k, "llama-3.1-8b", Shape{kReadAll, 32, 1024});
KVT_METHOD(8B_snapkv_1x1k, "llama-3.1-8b", Shape{kReadAll, 1, 1024});

}  // namespace
