#include "engine/cuda/mixed_bench.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/drawn_tokens.h"
#include "engine/cuda/packed.h"

namespace kvtwin::cuda {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct MixedBench::Parts {
  Parts(const MixedBenchConfig& given, const LlmSpec& llm) : config(given), tokens(llm.vocab) {}

  struct Call {
    CallId id{};
    bool first = true;
    uint32_t context = 0, narrow = 0;
    uint32_t wide_used = 0;  // cells in int4 pages
  };
  // int2 pages come first in the address space.
  PageId page(bool four) {
    uint32_t& next = four ? next_four : next_two;
    KVT_CHECK(next < config.pages);
    return PageId{next++ + (four ? config.pages : 0)};
  }
  // `count` more cells in int4 pages: the pages that begin with them.
  void grant_four(uint32_t entry, uint32_t count, Call* call) {
    const uint32_t page_tokens = config.page_tokens;
    const uint32_t have = div_ceil(call->wide_used, page_tokens);
    call->wide_used += count;
    for (uint32_t i = have; i < div_ceil(call->wide_used, page_tokens); ++i)
      grants.push_back({0, entry, page(true)});
  }
  double run(const LaunchStep& launch) {
    const Clock::time_point start = Clock::now();
    engine->step(launch, 0, &values);
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }

  const MixedBenchConfig config;
  DrawnTokens tokens;
  std::unique_ptr<CudaEngine> engine;
  NarrowCells cells{};
  std::vector<Call> calls;
  uint32_t next_two = 0, next_four = 0, next_call = 1;
  uint64_t next_step = 1;
  std::vector<PageGrant> grants;
  std::vector<CellRun> runs;
  std::vector<PlanEntry> entries;
  StepValues values;
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
  Result<OwnedCache> cache = make_dual(
      {.pages_int2 = config.pages, .group = config.group},
      {.page_tokens = config.page_tokens, .pages_gpu = own.pages_gpu, .rows_max = config.rows_max}, &llm);
  if (!cache) return tl::unexpected<Mistake>(cache.error());
  Result<std::unique_ptr<CudaEngine>> engine =
      CudaEngine::make(own, model, &parts->tokens, std::move(*cache));
  if (!engine) return tl::unexpected<Mistake>(engine.error());
  parts->engine = std::move(*engine);
  return std::unique_ptr<MixedBench>(new MixedBench(std::move(parts)));
}

void MixedBench::begin(uint32_t calls, NarrowCells narrow) {
  Parts& p = *parts_;
  for (const Parts::Call& call : p.calls) {
    p.engine->told(DropCallState{{}, call.id, DropCallState::Reason::kFinished});
    p.tokens.end(call.id);
  }
  p.calls.assign(calls, {});
  for (Parts::Call& call : p.calls) call.id = CallId{p.next_call++};
  p.cells = narrow, p.next_two = p.next_four = 0;
}

double MixedBench::chunk(uint32_t number, uint32_t tokens) {
  Parts& p = *parts_;
  Parts::Call& call = p.calls.at(number);
  const uint32_t page_tokens = p.config.page_tokens;
  KVT_CHECK(tokens % (2 * page_tokens) == 0);
  p.grants.clear(), p.runs.clear();
  for (uint32_t at = 0; at < tokens; at += page_tokens) {
    const bool four =
        p.cells == NarrowCells::kNone || (p.cells == NarrowCells::kHalf && at / page_tokens % 2 == 0);
    p.runs.push_back({0, page_tokens, four});
    if (four) {
      p.grant_four(0, page_tokens, &call);
    } else {
      p.grants.push_back({0, 0, p.page(false)});
      call.narrow += page_tokens;
    }
  }
  p.tokens.begin(call.id, call.context + tokens + 1);
  p.entries.assign(1, {call.id, EntryKind::kChunk, call.first, false, tokens, call.context});
  const double took = p.run({.step = StepId{p.next_step++},
                             .tokens = tokens,
                             .tokens_padded = tokens,
                             .entries = p.entries,
                             .grants = p.grants,
                             .adoptions = {},
                             .formats = p.runs});
  call.first = false, call.context += tokens;
  return took;
}

double MixedBench::decode(uint32_t calls) {
  Parts& p = *parts_;
  KVT_CHECK(calls <= p.calls.size());
  p.grants.clear(), p.entries.clear();
  for (uint32_t i = 0; i < calls; ++i) {
    Parts::Call& call = p.calls[i];
    p.tokens.begin(call.id, call.context + 1);
    p.grant_four(i, 1, &call);
    p.entries.push_back({call.id, EntryKind::kDecode, false, true, 1, call.context});
    ++call.context;
  }
  return p.run({.step = StepId{p.next_step++},
                .tokens = calls,
                .tokens_padded = calls,
                .entries = p.entries,
                .grants = p.grants,
                .adoptions = {}});
}

uint32_t MixedBench::context(uint32_t call) const { return parts_->calls.at(call).context; }
uint32_t MixedBench::narrow(uint32_t call) const { return parts_->calls.at(call).narrow; }

}  // namespace kvtwin::cuda
