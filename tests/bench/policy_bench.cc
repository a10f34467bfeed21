// The cost of single policy operations. `./dev bench --benchmark_filter=...` runs some of them.

#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "engine/base/prng.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/store/prefix_index.h"
#include "engine/chat/chat_renderer.h"
#include "engine/router/router.h"

namespace kvtwin {
namespace {

// One page allocated and one freed, in a pool of `range` pages that is nearly full.
void page_pool(benchmark::State& state, PageOrder order) {
  const auto pages = static_cast<uint32_t>(state.range(0));
  PagePool pool(PageId{0}, pages, order);
  std::vector<PageId> held;
  while (pool.pages_free() > pages / 16) held.push_back(pool.acquire());
  Prng prng(1);
  uint64_t stamp = 0, sum = 0;
  for (auto _ : state) {
    PageId& page = held[prng.next() % held.size()];
    pool.release(page, ++stamp);
    page = pool.acquire();
    sum += raw(page);
  }
  state.counters["out"] = static_cast<double>(sum % 65'536);
}
BENCHMARK_CAPTURE(page_pool, lowest_first, PageOrder::kLowestFirst)->Arg(4'096)->Arg(1'000'000);
BENCHMARK_CAPTURE(page_pool, oldest_first, PageOrder::kOldestFirst)->Arg(4'096)->Arg(1'000'000);

// The prompt of an agent, read at admission: messages of 100 to 900 tokens. Items are tokens.
void role_tagger(benchmark::State& state, const char* name) {
  const ChatTemplate& chat = *find_chat_template(name);
  constexpr Semantic kSteps[] = {Semantic::kUser, Semantic::kReasoning, Semantic::kToolCall, Semantic::kObs};
  ChatRenderer renderer(chat);
  std::vector<uint32_t> prompt;
  Prng prng(1);
  for (uint32_t i = 0; prompt.size() < static_cast<size_t>(state.range(0)); ++i) {
    const auto tokens = static_cast<uint32_t>(100 + prng.next() % 800);
    renderer.append({kSteps[i % 4], Modal::kText, 1 + i / 16, tokens}, tokens, &prompt);
  }
  size_t runs = 0;
  for (auto _ : state) {
    RoleTagger tagger(chat);
    tagger.append(prompt);
    runs += runs_of(tagger.roles()).size();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * prompt.size()));
  state.counters["out"] = static_cast<double>(runs % 65'536);
}
BENCHMARK_CAPTURE(role_tagger, llama3, "llama3")->Arg(10'000)->Arg(100'000);
BENCHMARK_CAPTURE(role_tagger, chatml, "chatml")->Arg(10'000)->Arg(100'000);
BENCHMARK_CAPTURE(role_tagger, mistral, "mistral")->Arg(10'000)->Arg(100'000);

// Sessions of coding agents: a prompt of 100,000 tokens in pages of 64 grows by 1,200 tokens per request,
// and an eighth of it (system prompt and tools) is shared by all. 24 sessions take turns, and the pool holds
// about half of their prefixes. One iteration is one request: acquire, insert new pages, release.
void prefix_index(benchmark::State& state) {
  constexpr uint32_t kSessions = 24, kStart = 1'560, kShared = 195, kGrowth = 19;
  const auto pages_total = static_cast<uint32_t>(state.range(0));
  PagePool gpu(PageId{0}, pages_total, PageOrder::kLowestFirst);
  PrefixIndex index(1, &gpu, nullptr, make_lru_eviction());
  std::vector<uint32_t> length(kSessions, kStart);
  std::vector<PageId> pages;
  uint64_t hits = 0, requests = 0, space = 1;
  std::vector<uint64_t> own(kSessions);
  for (uint64_t& s : own) s = ++space;
  Prng prng(1);
  for (auto _ : state) {
    const auto session = static_cast<uint32_t>(prng.next() % kSessions);
    length[session] += kGrowth;
    if (length[session] > 6'000) {  // the session ends, and another begins
      length[session] = kStart;
      own[session] = ++space;
    }
    const UnitRun identity[] = {{1, 0, kShared}, {own[session], kShared, length[session] - kShared}};
    Match match = index.acquire(0, identity, length[session]);
    hits += match.pin.pages;
    const uint32_t missing = length[session] - match.pin.pages;
    pages.clear();
    while (pages.size() < missing) {
      if (gpu.pages_free() == 0) gpu.release(index.evict_gpu_page(), index.tick());
      pages.push_back(gpu.acquire());
    }
    if (!index.insert(0, identity, pages, &match.pin)) {
      for (const PageId page : pages) gpu.release(page, index.tick());
    }
    index.release(match.pin, true);
    ++requests;
  }
  state.counters["pages_reused_per_request"] = static_cast<double>(hits) / static_cast<double>(requests);
}
BENCHMARK(prefix_index)->Arg(40'000)->Arg(200'000);

// All live sessions share a system prompt. One iteration is one request of one of them, in session-aware
// order: its time must not grow with the number of sessions.
void shared_prefix(benchmark::State& state) {
  constexpr uint32_t kShared = 200, kOwn = 4;
  const auto sessions = static_cast<uint32_t>(state.range(0));
  PagePool gpu(PageId{0}, kShared + (sessions + 1) * kOwn, PageOrder::kLowestFirst);
  PrefixIndex index(1, &gpu, nullptr, make_session_aware_eviction());
  std::vector<PageId> pages;
  Instant now{};
  const auto request = [&](uint32_t session) {
    now = now + Duration{1};
    index.begin_request(now, SessionId{session});
    const UnitRun identity[] = {{1, 0, kShared}, {uint64_t{session} + 2, 0, kOwn}};
    Match match = index.acquire(0, identity, kShared + kOwn);
    pages.clear();
    while (match.pin.pages + pages.size() < kShared + kOwn) pages.push_back(gpu.acquire());
    index.insert(0, identity, pages, &match.pin);
    index.mark(match.pin, SessionId{session});
    index.release(match.pin, true);
    index.end_request(now, SessionId{session});
    index.expect(now, SessionId{session}, {0, Duration{1'000'000'000}});
  };
  for (uint32_t session = 0; session < sessions; ++session) request(session);
  Prng prng(1);
  for (auto _ : state) request(static_cast<uint32_t>(prng.next() % sessions));
}
BENCHMARK(shared_prefix)->Arg(100)->Arg(1'000)->Arg(10'000);

void router_place(benchmark::State& state, RoutingKind kind) {
  Router router(kind, 8);
  Prng prng(1);
  RequestReady request;
  uint32_t next = 0;
  for (auto _ : state) {
    request.request = RequestId{next % 4'096};
    request.session = SessionId{static_cast<uint32_t>(prng.next() % 64)};
    request.prompt_tokens = static_cast<uint32_t>(prng.next() % 100'000);
    if (next++ >= 4'096) router.ended(request.request);
    router.place(request);
  }
  state.counters["out"] = static_cast<double>(router.digest() % 65'536);
}
BENCHMARK_CAPTURE(router_place, least_loaded, RoutingKind::kLeastLoaded);
BENCHMARK_CAPTURE(router_place, session_affine, RoutingKind::kSessionAffine);

}  // namespace
}  // namespace kvtwin
