// The behaviour model of retention, asked directly.

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "sim/behaviour_retention.h"
#include "sim/combined_source.h"

using namespace kvtwin;
using namespace kvtwin::sim;

namespace {

CoreConfig config(const char* layout, const char* budget) {
  CoreConfig out;
  out.page_tokens = 4;
  out.policies.layout = layout;
  out.policies.budget = budget;
  out.policies.layout_spec = {.layers = 2, .kv_heads = 4, .heads_per_group = 2};
  out.policies.budget_spec.sinks = 2;
  out.policies.budget_spec.window = 8;
  out.policies.budget_spec.ratio = kWhole / 4;
  out.policies.budget_spec.kept_min = 0;
  return out;
}

// One prompt of `tokens` tokens with a compression at its end.
struct Asked {
  explicit Asked(CallId call, uint32_t tokens)
      : entry{call, EntryKind::kChunk, true, true, tokens, 0},
        forced{{0, 2}, {tokens - 8, tokens}},
        compression{.entry = 0, .begin = 0, .end = tokens, .staged = false, .forced = forced, .keep = {}} {
    entry.key = {SessionId{raw(call)}, 0};
    for (uint32_t page = 0; page < div_ceil(tokens, 4u); ++page) grants.push_back({0, 0, PageId{page}});
  }
  LaunchStep launch() {
    LaunchStep out;
    out.entries = {&entry, 1};
    out.grants = grants;
    out.compressions = {&compression, 1};
    return out;
  }
  PlanEntry entry;
  Compression::Forced forced[2];
  Compression compression;
  std::vector<PageGrant> grants;
};

std::vector<uint32_t> counts(RetentionSource* source, CallId call, uint32_t tokens) {
  Asked asked(call, tokens);
  StepValues values;
  source->step(asked.launch(), 0, &values);
  REQUIRE(values.kept.size() == 1);
  return {values.kept[0].counts.begin(), values.kept[0].counts.end()};
}

}  // namespace

TEST_CASE("retention behaviour: fixed keeps the ratio, the window counted in") {
  RetentionSource source(config("ragged", "top_per_layer"), KeptModel::kFixed, 1);
  // 110 tokens less two sinks: a quarter is 27, eight of them the window, 19 of the 100 others.
  CHECK(counts(&source, CallId{1}, 110) == std::vector<uint32_t>(4, 2 + 8 + 19));
  CHECK(counts(&source, CallId{2}, 12) == std::vector<uint32_t>(4, 10));  // a quarter is less than the window
}

TEST_CASE("retention behaviour: an absolute budget counts the sinks, or leaves them out") {
  CoreConfig absolute = config("ragged", "ada");
  absolute.policies.budget_spec.cells = 40;
  RetentionSource counted(absolute, KeptModel::kFixed, 1);
  CHECK(counts(&counted, CallId{1}, 110) == std::vector<uint32_t>(4, 40));
  absolute.policies.budget_spec.sinks_free = true;
  RetentionSource free(absolute, KeptModel::kFixed, 1);
  CHECK(counts(&free, CallId{1}, 110) == std::vector<uint32_t>(4, 42));
}

TEST_CASE("retention behaviour: the released rule rounds up to pages and keeps a minimum") {
  CoreConfig released = config("ragged", "released");
  released.policies.budget_spec.kept_min = 40;
  RetentionSource source(released, KeptModel::kFixed, 1);
  CHECK(counts(&source, CallId{1}, 110) == std::vector<uint32_t>(4, 10 + 32));
}

TEST_CASE("retention behaviour: a profile's draws have its mean and deviation, and belong to call and head") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.layout_spec.heads_per_group = 1;
  drawn.policies.budget_spec.mu.assign(8, kWhole / 2);
  drawn.policies.budget_spec.sigma.assign(8, kWhole / 20);
  RetentionSource source(drawn, KeptModel::kProfile, 7), again(drawn, KeptModel::kProfile, 7);
  double sum = 0, squares = 0;
  constexpr int kCalls = 500;
  for (uint32_t call = 0; call < kCalls; ++call) {
    const std::vector<uint32_t> kept = counts(&source, CallId{call}, 10'010);
    for (const uint32_t cells : kept) {
      const double share = (cells - 10) / 10'000.0;
      sum += share;
      squares += share * share;
    }
  }
  const double mean = sum / (8 * kCalls), deviation = std::sqrt(squares / (8 * kCalls) - mean * mean);
  CHECK(std::abs(mean - 0.5) < 0.005);
  CHECK(std::abs(deviation - 0.05) < 0.005);
  // Another order of calls changes nothing.
  const std::vector<uint32_t> late = counts(&again, CallId{99}, 10'010);
  RetentionSource fresh(drawn, KeptModel::kProfile, 7);
  counts(&fresh, CallId{3}, 500);
  CHECK(counts(&fresh, CallId{99}, 10'010) == late);
  CHECK(counts(&fresh, CallId{98}, 10'010) != late);
}

TEST_CASE(
    "retention behaviour: draws belong to session and index, whatever number a request was sent under, and "
    "where") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.budget_spec.mu.assign(8, kWhole / 2);
  drawn.policies.budget_spec.sigma.assign(8, kWhole / 20);
  const auto retained = [&](CallId call, RequestKey key, uint16_t engine) {
    drawn.engine = EngineId{engine};
    RetentionSource source(drawn, KeptModel::kProfile, 7);
    Asked asked(call, 10'010);
    asked.entry.key = key;
    StepValues values;
    source.step(asked.launch(), 0, &values);
    return values.kept_counts;
  };
  const std::vector<uint32_t> first = retained(CallId{3}, {SessionId{1}, 2}, 0);
  CHECK(retained(CallId{4}, {SessionId{1}, 2}, 0) == first);
  CHECK(retained(CallId{3}, {SessionId{1}, 2}, 1) == first);
  CHECK(retained(CallId{3}, {SessionId{1}, 3}, 0) != first);
  CHECK(retained(CallId{3}, {SessionId{2}, 2}, 0) != first);
}

TEST_CASE("retention behaviour: a group is as long as its longest member") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.budget_spec.mu = {kWhole / 2, 0, 0, 0, kWhole / 4, kWhole / 5, 0, kWhole};
  drawn.policies.budget_spec.sigma.assign(8, 0);
  RetentionSource source(drawn, KeptModel::kProfile, 1);
  CHECK(counts(&source, CallId{1}, 110) == std::vector<uint32_t>{60, 10, 35, 110});
}

TEST_CASE("retention behaviour: a measured context is drawn once per call, for all its heads") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.layout_spec.heads_per_group = 1;
  const std::vector<Share> first = {0, kWhole, 0, kWhole, 0, kWhole, 0, kWhole};
  std::vector<Share> contexts = first;
  contexts.resize(16, kWhole / 4);
  RetentionSource source(drawn, KeptModel::kContexts, 5, contexts);
  const std::vector<uint32_t> quarter(8, 35), whole = {10, 110, 10, 110, 10, 110, 10, 110};
  uint32_t seen[2] = {};
  for (uint32_t call = 0; call < 100; ++call) {
    const std::vector<uint32_t> kept = counts(&source, CallId{call}, 110);
    REQUIRE((kept == quarter || kept == whole));
    ++seen[kept == whole ? 1 : 0];
  }
  CHECK(seen[0] > 30);
  CHECK(seen[1] > 30);
}

// Of 110 tokens less two sinks a quarter is kept, the window of eight counted in: 19 of the 100 others. A
// head with twice the mean share keeps 38 of them, not 50.
TEST_CASE("retention behaviour: shares are of what is kept beside the window") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.budget_spec.shares = true;
  drawn.policies.budget_spec.mu = {2 * kWhole, 0, kWhole, 0, kWhole / 2, 0, 0, 0};
  drawn.policies.budget_spec.sigma.assign(8, 0);
  RetentionSource source(drawn, KeptModel::kProfile, 1);
  CHECK(counts(&source, CallId{1}, 110) == std::vector<uint32_t>{10 + 38, 10 + 19, 10 + 10, 10});
}

TEST_CASE("retention behaviour: where cells keep their places, exactly as many are left as were asked for") {
  RetentionSource source(config("page_mask_dead", "uniform"), KeptModel::kFixed, 3);
  Asked asked(CallId{1}, 100);
  const uint32_t keep[] = {30};
  asked.compression.keep = keep;
  StepValues values;
  source.step(asked.launch(), 0, &values);
  const std::vector<uint64_t> live(values.kept[0].live.begin(), values.kept[0].live.end());
  const auto count = [](const std::vector<uint64_t>& words) {
    return std::accumulate(words.begin(), words.end(), 0,
                           [](int sum, uint64_t w) { return sum + std::popcount(w); });
  };
  CHECK(count(live) == 2 + 8 + 30);
  CHECK((live[0] & 3) == 3);
  // The next call adopts those pages: what is dead there stays dead.
  Asked next(CallId{2}, 120);
  next.entry.context = 100;
  next.entry.tokens = 20;
  next.compression.keep = keep;
  std::vector<PageId> pages;
  for (uint32_t page = 0; page < 25; ++page) pages.push_back(PageId{page});
  next.grants.erase(next.grants.begin(), next.grants.begin() + 25);
  LaunchStep launch = next.launch();
  const Adoption adoption{CallId{2}, pages};
  launch.adoptions = {&adoption, 1};
  source.step(launch, 0, &values);
  const std::vector<uint64_t> left(values.kept[0].live.begin(), values.kept[0].live.end());
  CHECK((left[0] & ~live[0]) == 0);
  CHECK(count(left) == 2 + 8 + 30);
}

namespace {

class Recalls final : public OutcomeSource {
 public:
  void step(const LaunchStep& launch, uint32_t, StepValues* values) override {
    values->clear();
    values->recalls.assign(2, {.blocking = 3});
    values->eos.push_back(launch.entries[0].call);
  }
  void told(const Command&) override { ++commands; }
  int commands = 0;
};

}  // namespace

TEST_CASE("combined source: each part answers what it knows, and both are told everything") {
  RetentionSource alone(config("ragged", "top_per_layer"), KeptModel::kFixed, 1);
  RetentionSource kept(config("ragged", "top_per_layer"), KeptModel::kFixed, 1);
  Recalls recalls;
  CombinedSource both({&recalls, &kept});
  for (const uint32_t tokens : {200u, 90u, 1000u}) {  // the second answer does not point into the first
    Asked asked(CallId{5}, tokens);
    StepValues values;
    both.step(asked.launch(), 0, &values);
    REQUIRE(values.recalls.size() == 2);
    CHECK(values.recalls[1].blocking == 3);
    CHECK(values.eos == std::vector<CallId>{CallId{5}});
    REQUIRE(values.kept.size() == 1);
    const std::vector<uint32_t> got(values.kept[0].counts.begin(), values.kept[0].counts.end());
    CHECK(got == counts(&alone, CallId{5}, tokens));
    CHECK(values.kept[0].counts.data() == values.kept_counts.data());
  }
  both.told(DropCallState{EngineId{}, CallId{5}, DropCallState::Reason::kFinished});
  CHECK(recalls.commands == 1);
}

TEST_CASE("combined source: where cells keep their places, the live bits travel with the answer") {
  CoreConfig holes = config("page_mask_dead", "uniform");
  RetentionSource alone(holes, KeptModel::kFixed, 1), kept(holes, KeptModel::kFixed, 1);
  Recalls recalls;
  CombinedSource both({&recalls, &kept});
  for (const uint32_t tokens : {200u, 90u, 1000u}) {
    const uint32_t keep[] = {tokens / 4};
    Asked asked(CallId{5}, tokens);
    asked.compression.keep = keep;
    StepValues values, expected;
    both.step(asked.launch(), 0, &values);
    alone.step(asked.launch(), 0, &expected);
    REQUIRE(values.kept.size() == 1);
    CHECK(std::ranges::equal(values.kept[0].live, expected.kept[0].live));
    CHECK(values.kept[0].live.size() >= tokens / 64);
    CHECK(values.kept[0].live.data() == values.kept_live.data());
  }
}
