// Drawn budgets, models, requests and limits. For all of them the oracle reads, recalls and computes the
// same.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "engine/base/prng.h"
#include "engine/cpu/retrieval/retrieved_cache.h"
#include "tests/support/retrieval_names.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"
#include "tests/unit/cpu_retrieval/retrieval_oracle.h"
#include "tests/unit/cpu_retrieval/retrieval_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr RetrievalName kMethods[] = {kQuest, kArkvale, kShadowkv, kInfinigen, kFreekv};
constexpr const char* kNames[] = {"quest", "arkvale", "shadowkv", "infinigen", "freekv"};

RetrievalSetting draw_setting(uint64_t seed, uint32_t layers) {
  Prng prng(draw({seed, 1}));
  RetrievalSetting out;
  const auto method = static_cast<size_t>(prng.range(0, 4));
  out.retrieval = kNames[method];
  out.page_tokens = prng.chance(1, 2) ? 4 : 16;
  const auto pages = [&](uint64_t low, uint64_t high) {
    return static_cast<uint32_t>(prng.range(low, high)) * out.page_tokens;
  };
  RetrievalSpec& spec = out.spec = small_spec(kMethods[method]);
  spec.sink_tokens = pages(0, 2);
  spec.window_tokens = pages(1, 3);
  spec.budget_tokens = spec.sink_tokens + spec.window_tokens + pages(1, 5);
  spec.extra_tokens = kMethods[method] == kShadowkv ? pages(0, 2) : 0;
  spec.layers_dense = static_cast<uint32_t>(prng.range(kMethods[method] == kInfinigen, layers - 1));
  const auto pooling = static_cast<GroupPooling>(prng.range(0, 5));
  // The oracle pools InfiniGen's tokens only as its authors do.
  if (kMethods[method] != kInfinigen) spec.pooling = pooling;
  spec.scale = prng.chance(1, 2) ? ScoreScale::kOne : ScoreScale::kInverseSqrt;
  if (kMethods[method] != kShadowkv)
    spec.summary = prng.chance(1, 2) ? PageSummary::kMinMax : PageSummary::kCuboid;
  out.copies.layout = prng.chance(1, 2) ? HostPageLayout::kHnd : HostPageLayout::kNhd;
  out.copies.staging_buffers = static_cast<uint32_t>(prng.range(1, 2));
  spec.tau_q32 = (static_cast<int64_t>(prng.range(0, 24)) - 12) * (kOneQ32 / 10);
  spec.speculation = kMethods[method] == kFreekv && prng.chance(5, 6);
  spec.columns_q32 = kOneQ32;  // the oracle selects by exact products
  spec.resident_fraction_q32 = prng.chance(1, 2) ? 1u << 29 : 0;
  out.seed = seed;
  out.delays = prng.chance(1, 2) ? seed : 0;
  out.in_flight = static_cast<uint32_t>(prng.range(1, 2));
  out.requests_max = static_cast<uint32_t>(prng.range(1, 5));
  out.step_tokens_max = static_cast<uint32_t>(prng.range(6, 90));
  // Sometimes too few pages for all requests: some are preempted and resume.
  const uint32_t enough = 240 / out.page_tokens;
  out.pages_gpu = prng.chance(1, 3) ? enough + enough / 2 : 6 * enough;
  out.pages_host = 6 * enough;
  return out;
}

std::vector<RetrievalRequest> draw_requests(uint64_t seed, uint32_t page) {
  Prng prng(draw({seed, 2}));
  std::vector<RetrievalRequest> out;
  int64_t at = 0;
  for (uint64_t i = 0; i < 2 + seed % 4; ++i) {
    at += static_cast<int64_t>(prng.range(0, 3000));
    auto prompt = static_cast<uint32_t>(prng.range(1, 180));
    if (prng.chance(1, 3)) prompt = std::max(page, prompt / page * page);  // ends at a page end
    out.push_back({at, prompt, static_cast<uint32_t>(prng.range(1, 50))});
  }
  return out;
}

}  // namespace

TEST_CASE("F-2 F-3 F-4 X-2 X-8 X-9 retrieval: 120 drawn settings against the oracle") {
  uint64_t reads = 0, compared = 0, corrected = 0, speculated = 0, preemptions = 0, concurrent = 0;
  uint64_t by_method[5] = {};
  double worst_exact = 0, worst_shadow = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    LlmSpec llm = tiny_models()[seed % 4];
    llm.layers = 3;
    const ModelWeights weights = ModelWeights::random(llm, seed);
    RetrievalSetting setting = draw_setting(seed, llm.layers);
    CAPTURE(setting.retrieval);
    const bool shadow = setting.retrieval == "shadowkv";
    if (shadow) setting.spec.rank = llm.kv_heads * llm.head_dim;
    RetrievalOracle oracle(setting, llm);
    setting.witness = &oracle;
    const RetrievalOutcome run = run_retrieval(setting, weights, draw_requests(seed, setting.page_tokens));
    CHECK(oracle.reads == run.recalled.heads);
    CHECK(oracle.corrected == run.recalled.corrected);
    CHECK(oracle.writes_into_reads == 0);
    reads += oracle.reads, compared += oracle.compared, corrected += oracle.corrected;
    speculated += oracle.speculated, preemptions += run.preemptions, concurrent += oracle.writes_during_reads;
    by_method[std::find_if(std::begin(kNames), std::end(kNames),
                           [&](const char* name) { return setting.retrieval == name; }) -
              std::begin(kNames)] += oracle.reads;
    double& worst = shadow ? worst_shadow : worst_exact;
    worst = std::max(worst, oracle.worst_output);
  }
  MESSAGE(reads << " reads, " << corrected << " corrected, " << speculated << " speculated, " << preemptions
                << " preemptions, " << concurrent << " copies during reads; ShadowKV at full rank off by "
                << worst_shadow);
  CHECK(compared == reads);
  CHECK(worst_exact == 0);
  CHECK(worst_shadow < 1e-3);
  CHECK(corrected > 500);
  CHECK(speculated > 500);
  CHECK(preemptions > 5);
  CHECK(concurrent > 100);
  for (const uint64_t count : by_method) CHECK(count > 500);
}

namespace {

// Steps of one Quest engine with pages chosen by the test.
class QuestSteps {
 public:
  QuestSteps(const ModelWeights& weights, const cpu::TokenIds& tokens) {
    RetrievalSpec spec = small_spec(kQuest);
    auto cache =
        cpu::RetrievedCache::make({.page_tokens = 8, .pages_gpu = 60, .pages_host = 30, .poison = true},
                                  &weights, {.kind = kQuest, .spec = spec});
    REQUIRE(cache.has_value());
    engine_ = std::make_unique<cpu::CpuEngine>(cpu::CpuEngineConfig{}, &weights, &tokens, std::move(*cache));
  }
  // Runs `tokens` more tokens of a request. Missing pages are allocated from `next` on.
  std::vector<float> run(RequestId request, uint32_t tokens, const std::vector<PageId>& reused = {}) {
    uint32_t& had = kv_[request];
    const bool first = had == 0;
    if (first) had = static_cast<uint32_t>(reused.size()) * 8;
    const PlanEntry entry{
        request, first || tokens > 1 ? EntryKind::kChunk : EntryKind::kDecode, first, true, tokens, had};
    std::vector<PageAllocation> allocations;
    for (uint32_t page = (had + 7) / 8; page < (had + tokens + 7) / 8; ++page)
      allocations.push_back({0, 0, PageId{next++}});
    const PrefixHit prefix_hit{request, reused};
    engine_->step({.entries = {&entry, 1},
                   .allocations = allocations,
                   .prefix_hits = {&prefix_hit, reused.empty() ? size_t{0} : size_t{1}}},
                  0, &values_);
    had += tokens;
    return {engine_->logits().begin(), engine_->logits().end()};
  }
  void copy(const std::vector<PageId>& source, const std::vector<PageId>& target) {
    engine_->notify(StartTransfer{.source = source, .target = target});
  }
  uint32_t next = 0;
  uint64_t chose() const { return engine_->recalled().heads; }

 private:
  std::unique_ptr<cpu::CpuEngine> engine_;
  std::map<RequestId, uint32_t> kv_;
  DataOutcomes values_;
};

}  // namespace

TEST_CASE("X-5 retrieval: pages that are shared, or were on the host, keep their summaries") {
  for (const LlmSpec& llm : {tiny_models()[0], tiny_models()[1]}) {
    const ModelWeights weights = ModelWeights::random(llm, 3);
    GivenTokens tokens;
    const std::vector<uint32_t> ids = random_tokens(4, 160, llm.vocab);
    for (uint32_t request = 1; request <= 3; ++request) tokens.give(RequestId{request}, ids, 110);
    QuestSteps steps(weights, tokens);
    const auto go_on = [&](RequestId request, const std::vector<float>& prompt) {
      std::vector<float> logits = prompt;
      for (int i = 0; i < 30; ++i) {
        const std::vector<float> more = steps.run(request, 1);
        logits.insert(logits.end(), more.begin(), more.end());
      }
      return logits;
    };
    const std::vector<float> alone = go_on(RequestId{1}, steps.run(RequestId{1}, 110));
    CHECK(steps.chose() > 0);
    std::vector<PageId> shared, host, back;
    for (uint32_t page = 0; page < 12; ++page) {
      shared.push_back(PageId{page});
      host.push_back(PageId{60 + 2 * page});
      back.push_back(PageId{59 - page});
    }
    CHECK(go_on(RequestId{2}, steps.run(RequestId{2}, 14, shared)) == alone);
    steps.copy(shared, host);
    steps.copy(host, back);
    CHECK(go_on(RequestId{3}, steps.run(RequestId{3}, 14, back)) == alone);
  }
}
