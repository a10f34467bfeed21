#include "engine/calibrate/step_bench.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/check.h"
#include "engine/calibrate/drawn_tokens.h"

namespace kvtwin::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace

struct StepBench::Parts {
  Parts(const StepBenchConfig& given, const LlmSpec& llm)
      : config(given),
        page_bytes(static_cast<double>(llm.kv_bytes_per_token() * given.page_tokens)),
        tokens(llm.vocab) {}

  void fill();
  // Of a request that grows by the steps of one measurement.
  uint32_t pages_of(const BenchRequest& request) const {
    constexpr uint32_t kStepsMax = 64;
    return div_ceil(request.context + request.tokens + kStepsMax, config.page_tokens);
  }
  // Steps of these requests from now on, with pages of their own; ends the ones before.
  void begin(std::span<const BenchRequest> requests);
  double step(uint32_t padded);
  TransferId start_copy(bool to_gpu, uint32_t pages);

  const StepBenchConfig config;
  const double page_bytes;  // of all layers
  DrawnTokens tokens;
  OperationLog log{true};
  std::unique_ptr<CudaEngine> engine;
  uint64_t next_step = 1, next_transfer = 1;
  uint32_t next_request = 1;
  std::vector<PlanEntry> entries;
  std::vector<std::vector<PageId>> pages;  // by entry
  bool first = false;
  DataOutcomes values;
};

StepBench::StepBench(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
StepBench::~StepBench() = default;

Result<std::unique_ptr<StepBench>> StepBench::make(const StepBenchConfig& config, const LlmSpec& llm,
                                                   const DeviceModel* model) {
  auto parts = std::make_unique<Parts>(config, llm);
  CudaEngineConfig own;
  own.page_tokens = config.page_tokens;
  own.pages_gpu = config.pages_gpu, own.pages_host = config.pages_host;
  own.rows_max = config.rows_max, own.samples_max = config.samples_max;
  own.row_sizes = config.row_sizes;
  own.concurrent_copies = true;
  own.log = config.timed ? &parts->log : nullptr;
  if (!config.graphs) own.graphs_max = 0;
  OwnedCache cache;
  if (config.packed) {
    const uint32_t most = config.row_sizes.empty() ? 0 : config.row_sizes.back();
    Result<OwnedCache> packed = make_packed(*config.packed,
                                            {.page_tokens = config.page_tokens,
                                             .pages_gpu = config.pages_gpu,
                                             .pages_host = config.pages_host,
                                             .rows_max = std::max(config.rows_max, most)},
                                            &llm);
    if (!packed) return tl::unexpected<Error>(packed.error());
    cache = std::move(*packed);
  }
  Result<std::unique_ptr<CudaEngine>> engine = CudaEngine::make(own, model, &parts->tokens, std::move(cache));
  if (!engine) return tl::unexpected<Error>(engine.error());
  parts->engine = std::move(*engine);
  parts->fill();
  return std::unique_ptr<StepBench>(new StepBench(std::move(parts)));
}

uint64_t StepBench::entries_max() const {
  return uint64_t{parts_->config.pages_gpu - 1} * parts_->config.page_tokens;
}

// Pages of the GPU that are copied lie apart (start_copy).
uint32_t StepBench::copies_max() const {
  return std::min(parts_->config.pages_host, (parts_->config.pages_gpu - 1) / 2);
}

bool StepBench::fits(std::span<const BenchRequest> requests) const {
  uint64_t pages = 1;  // the first one is where padding rows go
  for (const BenchRequest& request : requests) pages += parts_->pages_of(request);
  return pages <= parts_->config.pages_gpu;
}

// One page of KV as the model makes it, everywhere.
void StepBench::Parts::fill() {
  tokens.begin(RequestId{0}, config.page_tokens);
  const PlanEntry entry{RequestId{0}, EntryKind::kChunk, true, false, config.page_tokens, 0};
  const PageAllocation allocation{0, 0, PageId{0}};
  engine->step({.tokens = config.page_tokens,
                .entries = {&entry, 1},
                .allocations = {&allocation, 1},
                .prefix_hits = {}},
               0, &values);
  const std::vector<PageId> from(config.pages_gpu - 1);
  std::vector<PageId> to;
  for (uint32_t p = 1; p < config.pages_gpu; ++p) to.push_back(PageId{p});
  const TransferId transfer{next_transfer++};
  engine->notify(StartTransfer{.transfer = transfer, .source = from, .target = to});
  engine->copy_time(transfer);
  engine->notify(DropRequestState{{}, RequestId{0}, DropRequestState::Reason::kFinished});
}

void StepBench::Parts::begin(std::span<const BenchRequest> requests) {
  for (const PlanEntry& entry : entries) {
    engine->notify(DropRequestState{{}, entry.request, DropRequestState::Reason::kFinished});
    tokens.end(entry.request);
  }
  entries.clear(), pages.clear();
  for (const BenchRequest& request : requests) {
    const EntryKind kind = request.tokens > 1 ? EntryKind::kChunk : EntryKind::kDecode;
    tokens.begin(RequestId{next_request}, request.context + request.tokens);
    entries.push_back(
        {RequestId{next_request++}, kind, true, request.samples, request.tokens, request.context});
  }
  first = true;
  // Page p of every request, then page p + 1: neighbours of a request lie apart, as in a server that has run
  // for a while. The first page of the pool is where padding rows of the warm-up went.
  std::vector<uint32_t> needed;
  uint32_t most = 0;
  for (const BenchRequest& request : requests) {
    needed.push_back(pages_of(request));
    most = std::max(most, needed.back());
  }
  pages.resize(requests.size());
  uint32_t next = 1;
  for (uint32_t p = 0; p < most; ++p) {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (p < needed[i]) pages[i].push_back(PageId{next++});
    }
  }
  KVT_CHECK(next <= config.pages_gpu);
}

double StepBench::Parts::step(uint32_t padded) {
  std::vector<PrefixHit> prefix_hits;
  uint32_t rows = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].first = first;
    rows += entries[i].tokens;
    if (first) prefix_hits.push_back({entries[i].request, pages[i]});
  }
  first = false;
  const LaunchStep launch{.step = StepId{next_step++},
                          .tokens = rows,
                          .tokens_padded = std::max(padded, rows),
                          .entries = entries,
                          .allocations = {},
                          .prefix_hits = prefix_hits};
  const Clock::time_point start = Clock::now();
  engine->step(launch, 0, &values);
  const double took = us_since(start);
  for (PlanEntry& entry : entries) entry.context += entry.kind == EntryKind::kDecode ? 1 : 0;
  return took;
}

StepTimes StepBench::measure(std::span<const BenchRequest> requests, uint32_t padded, uint32_t warm,
                             uint32_t steps) {
  StepTimes out;
  parts_->begin(requests);
  for (uint32_t i = 0; i < warm + steps; ++i) {
    const StepId id{parts_->next_step};
    const double took = parts_->step(padded);
    std::array<double, kOperations> sum{};
    std::array<uint32_t, kOperations> count{};
    for (const OperationTime& one : parts_->log.take({}, id)) {
      const auto kind = static_cast<size_t>(one.operation);
      sum[kind] += static_cast<double>(one.to.ns - one.from.ns) / 1e3;
      ++count[kind];
    }
    (i < warm ? out.warm : out.wall).push_back(took);
    if (i < warm) continue;
    if (!parts_->config.timed) continue;
    out.issued.push_back(static_cast<double>(parts_->engine->issued().ns) / 1e3);
    for (size_t kind = 0; kind < kOperations; ++kind) {
      if (count[kind] > 0) out.operation[kind].push_back(sum[kind] / count[kind]);
    }
    out.count = count;
  }
  return out;
}

std::vector<double> StepBench::series(std::span<const BenchRequest> requests, uint32_t padded, double us) {
  constexpr uint32_t kAtOnce = 48;  // contexts grow and have room for this many tokens
  std::vector<double> out;
  for (double sum = 0; sum < us;) {
    parts_->begin(requests);
    for (uint32_t i = 0; i < kAtOnce && sum < us; ++i) {
      out.push_back(parts_->step(padded));
      sum += out.back();
      parts_->log.take({}, StepId{parts_->next_step - 1});
    }
  }
  return out;
}

TransferId StepBench::Parts::start_copy(bool to_gpu, uint32_t count) {
  KVT_CHECK(count <= config.pages_host && count <= (config.pages_gpu - 1) / 2);
  std::vector<PageId> near, far;
  // Pages that are apart, and not among those that steps read.
  for (uint32_t i = 0; i < count; ++i) {
    near.push_back(PageId{config.pages_gpu - 1 - 2 * i - (to_gpu ? 1 : 0)});
    far.push_back(PageId{config.pages_gpu + (to_gpu ? i : config.pages_host - 1 - i)});
  }
  StartTransfer copy;
  copy.transfer = TransferId{next_transfer++};
  copy.source_tier = to_gpu ? Tier::kHost : Tier::kGpu, copy.target_tier = to_gpu ? Tier::kGpu : Tier::kHost;
  copy.source = to_gpu ? far : near, copy.target = to_gpu ? near : far;
  engine->notify(copy);
  return copy.transfer;
}

std::vector<double> StepBench::copies(bool to_gpu, uint32_t pages, uint32_t times) {
  std::vector<double> out;
  for (uint32_t i = 0; i <= times; ++i) {
    const TransferId transfer = parts_->start_copy(to_gpu, pages);
    const double took = static_cast<double>(parts_->engine->copy_time(transfer).ns) / 1e3;
    if (i > 0) out.push_back(took);  // the first copy touches its pages for the first time
  }
  return out;
}

// Each direction always has its next copy queued. The first and the last copy may run alone and are excluded.
StepBench::BothWays StepBench::both_ways(uint32_t pages, uint32_t times) {
  BothWays out;
  std::vector<TransferId> ins, outs;
  for (uint32_t i = 0; i < times + 2; ++i) {
    ins.push_back(parts_->start_copy(true, pages));
    outs.push_back(parts_->start_copy(false, pages));
  }
  const double bytes = parts_->page_bytes * pages;
  for (auto [copies, to] : {std::pair(&ins, &out.in_gb_per_s), std::pair(&outs, &out.out_gb_per_s)}) {
    for (size_t i = 0; i < copies->size(); ++i) {
      const double us = static_cast<double>(parts_->engine->copy_time((*copies)[i]).ns) / 1e3;
      if (i > 0 && i + 1 < copies->size()) to->push_back(bytes / us / 1e3);
    }
  }
  return out;
}

StepBench::Concurrent StepBench::copy_during_steps(std::span<const BenchRequest> requests, bool to_gpu,
                                                   uint32_t pages, uint32_t steps) {
  Concurrent result;
  parts_->begin(requests);
  for (uint32_t i = 0; i < 4; ++i) parts_->step(0);
  for (uint32_t i = 0; i < steps; ++i) {
    const TransferId copy = parts_->start_copy(to_gpu, pages);
    result.steps.wall.push_back(parts_->step(0));
    result.copies.push_back(static_cast<double>(parts_->engine->copy_time(copy).ns) / 1e3);
  }
  return result;
}

// Copies are queued ahead of the steps: each direction always has one in flight.
StepBench::Concurrent StepBench::during_copies(std::span<const BenchRequest> requests, bool in, bool out,
                                               uint32_t pages, uint32_t steps) {
  Concurrent result;
  Parts& p = *parts_;
  p.begin(requests);
  for (uint32_t i = 0; i < 3; ++i) p.step(0);
  std::vector<TransferId> ins, outs;
  // Issues as many copies at once as the steps may need at 60 GB/s and 20 ms per step.
  for (uint32_t i = 0; i < steps; ++i) {
    if (in) ins.push_back(p.start_copy(true, pages));
    if (out) outs.push_back(p.start_copy(false, pages));
  }
  for (uint32_t i = 0; i < steps; ++i) result.steps.wall.push_back(p.step(0));
  const double bytes = p.page_bytes * pages;
  const auto rates = [&](const std::vector<TransferId>& copies, std::vector<double>* to) {
    for (const TransferId copy : copies) {
      const double us = static_cast<double>(p.engine->copy_time(copy).ns) / 1e3;
      to->push_back(bytes / us / 1e3);
    }
  };
  rates(ins, &result.in_gb_per_s);
  rates(outs, &result.out_gb_per_s);
  return result;
}

}  // namespace kvtwin::cuda
