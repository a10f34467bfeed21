#include "engine/calibrate/mixed_bench.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/check.h"
#include "engine/calibrate/drawn_tokens.h"
#include "engine/cuda/packed/packed.h"

namespace kvtwin::cuda {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct MixedBench::Parts {
  Parts(const MixedBenchConfig& given, const LlmSpec& llm) : config(given), tokens(llm.vocab) {}

  struct Request {
    RequestId id{};
    bool first = true;
    uint32_t context = 0, low_bit = 0;
    uint32_t dequantized_used = 0;  // KV entries in int4 pages
  };
  // int2 pages precede int4 pages in the address space.
  PageId page(bool four) {
    uint32_t& next = four ? next_four : next_two;
    KVT_CHECK(next < config.pages);
    return PageId{next++ + (four ? config.pages : 0)};
  }
  // Adds `count` KV entries in int4 pages: allocates the pages that they start.
  void allocate_four(uint32_t entry, uint32_t count, Request* request) {
    const uint32_t page_tokens = config.page_tokens;
    const uint32_t have = div_ceil(request->dequantized_used, page_tokens);
    request->dequantized_used += count;
    for (uint32_t i = have; i < div_ceil(request->dequantized_used, page_tokens); ++i)
      allocations.push_back({0, entry, page(true)});
  }
  double run(const LaunchStep& launch) {
    const Clock::time_point start = Clock::now();
    engine->step(launch, 0, &values);
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }

  const MixedBenchConfig config;
  DrawnTokens tokens;
  std::unique_ptr<CudaEngine> engine;
  LowBitEntries kv_entries{};
  std::vector<Request> requests;
  uint32_t next_two = 0, next_four = 0, next_request = 1;
  uint64_t next_step = 1;
  std::vector<PageAllocation> allocations;
  std::vector<FormatRun> runs;
  std::vector<PlanEntry> entries;
  DataOutcomes values;
};

MixedBench::MixedBench(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
MixedBench::~MixedBench() = default;

Result<std::unique_ptr<MixedBench>> MixedBench::make(const MixedBenchConfig& config, const LlmSpec& llm,
                                                     const DeviceModel* model) {
  auto parts = std::make_unique<Parts>(config, llm);
  CudaEngineConfig own;
  own.page_tokens = config.page_tokens, own.pages_gpu = 2 * config.pages;
  own.rows_max = config.rows_max, own.samples_max = config.samples_max;
  own.row_sizes = config.row_sizes;
  Result<OwnedCache> cache = make_mixed_precision(
      {.pages_int2 = config.pages, .group = config.group},
      {.page_tokens = config.page_tokens, .pages_gpu = own.pages_gpu, .rows_max = config.rows_max}, &llm);
  if (!cache) return tl::unexpected<Error>(cache.error());
  Result<std::unique_ptr<CudaEngine>> engine =
      CudaEngine::make(own, model, &parts->tokens, std::move(*cache));
  if (!engine) return tl::unexpected<Error>(engine.error());
  parts->engine = std::move(*engine);
  return std::unique_ptr<MixedBench>(new MixedBench(std::move(parts)));
}

void MixedBench::begin(uint32_t requests, LowBitEntries low_bit) {
  Parts& p = *parts_;
  for (const Parts::Request& request : p.requests) {
    p.engine->notify(DropRequestState{{}, request.id, DropRequestState::Reason::kFinished});
    p.tokens.end(request.id);
  }
  p.requests.assign(requests, {});
  for (Parts::Request& request : p.requests) request.id = RequestId{p.next_request++};
  p.kv_entries = low_bit, p.next_two = p.next_four = 0;
}

double MixedBench::chunk(uint32_t number, uint32_t tokens) {
  Parts& p = *parts_;
  Parts::Request& request = p.requests.at(number);
  const uint32_t page_tokens = p.config.page_tokens;
  KVT_CHECK(tokens % (2 * page_tokens) == 0);
  p.allocations.clear(), p.runs.clear();
  for (uint32_t at = 0; at < tokens; at += page_tokens) {
    const bool four = p.kv_entries == LowBitEntries::kNone ||
                      (p.kv_entries == LowBitEntries::kHalf && at / page_tokens % 2 == 0);
    p.runs.push_back({0, page_tokens, four});
    if (four) {
      p.allocate_four(0, page_tokens, &request);
    } else {
      p.allocations.push_back({0, 0, p.page(false)});
      request.low_bit += page_tokens;
    }
  }
  p.tokens.begin(request.id, request.context + tokens + 1);
  p.entries.assign(1, {request.id, EntryKind::kChunk, request.first, false, tokens, request.context});
  const double took = p.run({.step = StepId{p.next_step++},
                             .tokens = tokens,
                             .tokens_padded = tokens,
                             .entries = p.entries,
                             .allocations = p.allocations,
                             .prefix_hits = {},
                             .formats = p.runs});
  request.first = false, request.context += tokens;
  return took;
}

double MixedBench::decode(uint32_t requests) {
  Parts& p = *parts_;
  KVT_CHECK(requests <= p.requests.size());
  p.allocations.clear(), p.entries.clear();
  for (uint32_t i = 0; i < requests; ++i) {
    Parts::Request& request = p.requests[i];
    p.tokens.begin(request.id, request.context + 1);
    p.allocate_four(i, 1, &request);
    p.entries.push_back({request.id, EntryKind::kDecode, false, true, 1, request.context});
    ++request.context;
  }
  return p.run({.step = StepId{p.next_step++},
                .tokens = requests,
                .tokens_padded = requests,
                .entries = p.entries,
                .allocations = p.allocations,
                .prefix_hits = {}});
}

uint32_t MixedBench::context(uint32_t request) const { return parts_->requests.at(request).context; }
uint32_t MixedBench::low_bit(uint32_t request) const { return parts_->requests.at(request).low_bit; }

}  // namespace kvtwin::cuda
