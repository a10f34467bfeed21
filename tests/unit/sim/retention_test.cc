// The behaviour model of retention, called directly.

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "sim/behaviour/behaviour_retention.h"
#include "sim/behaviour/combined_source.h"

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
  out.policies.budget_spec.retained_min = 0;
  return out;
}

// One prompt of `tokens` tokens with a compression at its end.
struct RetentionQuery {
  explicit RetentionQuery(RequestId request, uint32_t tokens)
      : entry{request, EntryKind::kChunk, true, true, tokens, 0},
        forced{{0, 2}, {tokens - 8, tokens}},
        compression{.entry = 0, .begin = 0, .end = tokens, .staged = false, .forced = forced, .keep = {}} {
    entry.key = {SessionId{raw(request)}, 0};
    for (uint32_t page = 0; page < div_ceil(tokens, 4u); ++page) allocations.push_back({0, 0, PageId{page}});
  }
  LaunchStep launch() {
    LaunchStep out;
    out.entries = {&entry, 1};
    out.allocations = allocations;
    out.compressions = {&compression, 1};
    return out;
  }
  PlanEntry entry;
  Compression::Forced forced[2];
  Compression compression;
  std::vector<PageAllocation> allocations;
};

std::vector<uint32_t> counts(RetentionSource* source, RequestId request, uint32_t tokens) {
  RetentionQuery asked(request, tokens);
  DataOutcomes values;
  source->step(asked.launch(), 0, &values);
  REQUIRE(values.retained.size() == 1);
  return {values.retained[0].counts.begin(), values.retained[0].counts.end()};
}

}  // namespace

TEST_CASE("retention behaviour: fixed retains the ratio, including the window") {
  RetentionSource source(config("ragged", "top_per_layer"), RetentionModel::kFixed, 1);
  // 110 tokens less two sinks: a quarter is 27; eight of them are the window, and 19 are of the 100 others.
  CHECK(counts(&source, RequestId{1}, 110) == std::vector<uint32_t>(4, 2 + 8 + 19));
  CHECK(counts(&source, RequestId{2}, 12) ==
        std::vector<uint32_t>(4, 10));  // a quarter is less than the window
}

TEST_CASE("retention behaviour: an absolute budget includes the sinks or excludes them") {
  CoreConfig absolute = config("ragged", "ada");
  absolute.policies.budget_spec.kv_entries = 40;
  RetentionSource counted(absolute, RetentionModel::kFixed, 1);
  CHECK(counts(&counted, RequestId{1}, 110) == std::vector<uint32_t>(4, 40));
  absolute.policies.budget_spec.sinks_free = true;
  RetentionSource free(absolute, RetentionModel::kFixed, 1);
  CHECK(counts(&free, RequestId{1}, 110) == std::vector<uint32_t>(4, 42));
}

TEST_CASE("retention behaviour: the released rule rounds up to pages and keeps a minimum") {
  CoreConfig released = config("ragged", "released");
  released.policies.budget_spec.retained_min = 40;
  RetentionSource source(released, RetentionModel::kFixed, 1);
  CHECK(counts(&source, RequestId{1}, 110) == std::vector<uint32_t>(4, 10 + 32));
}

TEST_CASE(
    "retention behaviour: a profile's draws have its mean and deviation, and are keyed by request and head") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.layout_spec.heads_per_group = 1;
  drawn.policies.budget_spec.mu.assign(8, kWhole / 2);
  drawn.policies.budget_spec.sigma.assign(8, kWhole / 20);
  RetentionSource source(drawn, RetentionModel::kProfile, 7), again(drawn, RetentionModel::kProfile, 7);
  double sum = 0, squares = 0;
  constexpr int kRequests = 500;
  for (uint32_t request = 0; request < kRequests; ++request) {
    const std::vector<uint32_t> retained = counts(&source, RequestId{request}, 10'010);
    for (const uint32_t kv_entries : retained) {
      const double fraction = (kv_entries - 10) / 10'000.0;
      sum += fraction;
      squares += fraction * fraction;
    }
  }
  const double mean = sum / (8 * kRequests), deviation = std::sqrt(squares / (8 * kRequests) - mean * mean);
  CHECK(std::abs(mean - 0.5) < 0.005);
  CHECK(std::abs(deviation - 0.05) < 0.005);
  // The order of requests changes nothing.
  const std::vector<uint32_t> late = counts(&again, RequestId{99}, 10'010);
  RetentionSource fresh(drawn, RetentionModel::kProfile, 7);
  counts(&fresh, RequestId{3}, 500);
  CHECK(counts(&fresh, RequestId{99}, 10'010) == late);
  CHECK(counts(&fresh, RequestId{98}, 10'010) != late);
}

TEST_CASE(
    "retention behaviour: draws are keyed by session and index, not by the request's number or engine") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.budget_spec.mu.assign(8, kWhole / 2);
  drawn.policies.budget_spec.sigma.assign(8, kWhole / 20);
  const auto retained = [&](RequestId request, RequestKey key, uint16_t engine) {
    drawn.engine = EngineId{engine};
    RetentionSource source(drawn, RetentionModel::kProfile, 7);
    RetentionQuery asked(request, 10'010);
    asked.entry.key = key;
    DataOutcomes values;
    source.step(asked.launch(), 0, &values);
    return values.retained_counts;
  };
  const std::vector<uint32_t> first = retained(RequestId{3}, {SessionId{1}, 2}, 0);
  CHECK(retained(RequestId{4}, {SessionId{1}, 2}, 0) == first);
  CHECK(retained(RequestId{3}, {SessionId{1}, 2}, 1) == first);
  CHECK(retained(RequestId{3}, {SessionId{1}, 3}, 0) != first);
  CHECK(retained(RequestId{3}, {SessionId{2}, 2}, 0) != first);
}

TEST_CASE("retention behaviour: a group has the length of its longest member") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.budget_spec.mu = {kWhole / 2, 0, 0, 0, kWhole / 4, kWhole / 5, 0, kWhole};
  drawn.policies.budget_spec.sigma.assign(8, 0);
  RetentionSource source(drawn, RetentionModel::kProfile, 1);
  CHECK(counts(&source, RequestId{1}, 110) == std::vector<uint32_t>{60, 10, 35, 110});
}

TEST_CASE("retention behaviour: a measured context is drawn once per request, for all its heads") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.layout_spec.heads_per_group = 1;
  const std::vector<Fraction> first = {0, kWhole, 0, kWhole, 0, kWhole, 0, kWhole};
  std::vector<Fraction> contexts = first;
  contexts.resize(16, kWhole / 4);
  RetentionSource source(drawn, RetentionModel::kContexts, 5, contexts);
  const std::vector<uint32_t> quarter(8, 35), whole = {10, 110, 10, 110, 10, 110, 10, 110};
  uint32_t seen[2] = {};
  for (uint32_t request = 0; request < 100; ++request) {
    const std::vector<uint32_t> retained = counts(&source, RequestId{request}, 110);
    REQUIRE((retained == quarter || retained == whole));
    ++seen[retained == whole ? 1 : 0];
  }
  CHECK(seen[0] > 30);
  CHECK(seen[1] > 30);
}

// A quarter of 110 tokens less two sinks is retained, including the window of eight: 19 of the 100 others. A
// head with twice the mean fraction retains 38 of them, not 50.
TEST_CASE("retention behaviour: fractions apply to the entries retained outside the window") {
  CoreConfig drawn = config("ragged", "top_across_layers");
  drawn.policies.budget_spec.relative = true;
  drawn.policies.budget_spec.mu = {2 * kWhole, 0, kWhole, 0, kWhole / 2, 0, 0, 0};
  drawn.policies.budget_spec.sigma.assign(8, 0);
  RetentionSource source(drawn, RetentionModel::kProfile, 1);
  CHECK(counts(&source, RequestId{1}, 110) == std::vector<uint32_t>{10 + 38, 10 + 19, 10 + 10, 10});
}

TEST_CASE("retention behaviour: where slots are dropped in place, exactly the requested number is retained") {
  RetentionSource source(config("page_mask", "uniform"), RetentionModel::kFixed, 3);
  RetentionQuery asked(RequestId{1}, 100);
  const uint32_t keep[] = {30};
  asked.compression.keep = keep;
  DataOutcomes values;
  source.step(asked.launch(), 0, &values);
  const std::vector<uint64_t> live(values.retained[0].live.begin(), values.retained[0].live.end());
  const auto count = [](const std::vector<uint64_t>& words) {
    return std::accumulate(words.begin(), words.end(), 0,
                           [](int sum, uint64_t w) { return sum + std::popcount(w); });
  };
  CHECK(count(live) == 2 + 8 + 30);
  CHECK((live[0] & 3) == 3);
  // The next request reuses those pages, and dropped slots stay dropped.
  RetentionQuery next(RequestId{2}, 120);
  next.entry.context = 100;
  next.entry.tokens = 20;
  next.compression.keep = keep;
  std::vector<PageId> pages;
  for (uint32_t page = 0; page < 25; ++page) pages.push_back(PageId{page});
  next.allocations.erase(next.allocations.begin(), next.allocations.begin() + 25);
  LaunchStep launch = next.launch();
  const PrefixHit prefix_hit{RequestId{2}, pages};
  launch.prefix_hits = {&prefix_hit, 1};
  source.step(launch, 0, &values);
  const std::vector<uint64_t> left(values.retained[0].live.begin(), values.retained[0].live.end());
  CHECK((left[0] & ~live[0]) == 0);
  CHECK(count(left) == 2 + 8 + 30);
}

namespace {

class Recalls final : public OutcomeSource {
 public:
  void step(const LaunchStep& launch, uint32_t, DataOutcomes* values) override {
    values->clear();
    values->recalls.assign(2, {.blocking = 3});
    values->eos.push_back(launch.entries[0].request);
  }
  void notify(const Command&) override { ++commands; }
  int commands = 0;
};

}  // namespace

TEST_CASE("combined source: each part answers its own outcomes, and both are notified of everything") {
  RetentionSource alone(config("ragged", "top_per_layer"), RetentionModel::kFixed, 1);
  RetentionSource retained(config("ragged", "top_per_layer"), RetentionModel::kFixed, 1);
  Recalls recalls;
  CombinedSource both({&recalls, &retained});
  for (const uint32_t tokens : {200u, 90u, 1000u}) {  // the second answer must not point into the first
    RetentionQuery asked(RequestId{5}, tokens);
    DataOutcomes values;
    both.step(asked.launch(), 0, &values);
    REQUIRE(values.recalls.size() == 2);
    CHECK(values.recalls[1].blocking == 3);
    CHECK(values.eos == std::vector<RequestId>{RequestId{5}});
    REQUIRE(values.retained.size() == 1);
    const std::vector<uint32_t> got(values.retained[0].counts.begin(), values.retained[0].counts.end());
    CHECK(got == counts(&alone, RequestId{5}, tokens));
    CHECK(values.retained[0].counts.data() == values.retained_counts.data());
  }
  both.notify(DropRequestState{EngineId{}, RequestId{5}, DropRequestState::Reason::kFinished});
  CHECK(recalls.commands == 1);
}

TEST_CASE("combined source: where slots are dropped in place, the answer includes the live bits") {
  CoreConfig dropped_slots = config("page_mask", "uniform");
  RetentionSource alone(dropped_slots, RetentionModel::kFixed, 1),
      retained(dropped_slots, RetentionModel::kFixed, 1);
  Recalls recalls;
  CombinedSource both({&recalls, &retained});
  for (const uint32_t tokens : {200u, 90u, 1000u}) {
    const uint32_t keep[] = {tokens / 4};
    RetentionQuery asked(RequestId{5}, tokens);
    asked.compression.keep = keep;
    DataOutcomes values, expected;
    both.step(asked.launch(), 0, &values);
    alone.step(asked.launch(), 0, &expected);
    REQUIRE(values.retained.size() == 1);
    CHECK(std::ranges::equal(values.retained[0].live, expected.retained[0].live));
    CHECK(values.retained[0].live.size() >= tokens / 64);
    CHECK(values.retained[0].live.data() == values.retained_live.data());
  }
}
