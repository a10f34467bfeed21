#include "models/cost_tables/method_cost.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/cost/graph_shapes.h"
#include "models/cost/partwise_cost.h"
#include "models/cost/recent_load.h"
#include "models/cost_tables/device_drift.h"

namespace kvtwin {
namespace {

constexpr Ticks kUs = 1000 * kTicksPerNs;

// Every step takes 100 us: 10 for attention in each of two layers, and the rest outside it.
class ConstantCost final : public CostModel {
 public:
  StepCost step(const StepShape&) override {
    StepCost cost;
    cost.device = cost.by_evidence[static_cast<size_t>(Evidence::kMeasured)] = 100 * kUs;
    return cost;
  }
  std::vector<StepPart> ops(const StepShape&) override {
    return {{"rest", PartKind::kGemm, PartPlace::kLayer, 2, 40 * kUs, Evidence::kMeasured},
            {"attention", PartKind::kAttention, PartPlace::kLayer, 2, 10 * kUs, Evidence::kMeasured}};
  }
};

MeasuredMethod method() {
  return {"m",
          "tiny",
          {{name_of(MethodTerm::kStep), 3},
           {name_of(MethodTerm::kDecode), 2},
           {name_of(MethodTerm::kWrapped), 100},
           {name_of(MethodTerm::kWrappedHistory), 1000},
           {name_of(MethodTerm::kCompression), 50},
           {name_of(MethodTerm::kHeld), 10},
           {name_of(MethodTerm::kChosenFrom), 4}},
          10,
          0.01,
          0.02};
}

Ticks sum(const std::vector<StepPart>& parts) {
  Ticks out = 0;
  for (const StepPart& part : parts) out += part.times * part.each;
  return out;
}

double method_us(Ticks ticks) { return static_cast<double>(ticks) / kUs; }

StepShape method_decodes(uint32_t count) {
  StepShape shape;
  shape.decodes = shape.tokens = count;
  return shape;
}

}  // namespace

TEST_CASE("method cost: the step's counts times their terms, by sum and by part") {
  for (const bool retrieves : {false, true}) {
    MethodCost cost(method(), 2, {100, 0}, retrieves, std::make_unique<ConstantCost>());
    StepShape shape = method_decodes(5);
    CHECK(cost.step(shape).device == (100 + 3 + 10) * kUs);
    shape.chosen_from = 2000;
    CHECK(cost.step(shape).device == (100 + 3 + 10 + 8) * kUs);
    const CompressionShape cut[] = {{.tokens = 400, .held = 300, .ranked = 300},
                                    {.tokens = 9, .held = 700, .ranked = 1}};
    shape.compressions = cut;
    const StepCost both = cost.step(shape);
    CHECK(both.device == (121 + 2 * 50 + 10) * kUs);
    CHECK(both.compression[static_cast<size_t>(CompressionPart::kScore)] == 110 * kUs);
    CHECK(sum(cost.ops(shape)) == both.device);
    Ticks evidence = 0;
    for (const Ticks one : both.by_evidence) evidence += one;
    CHECK(evidence == both.device);
    CHECK(cost.range(shape).low < both.device);
    CHECK(cost.range(shape).high > both.device);
  }
}

TEST_CASE("method cost: only chunks that overrun a ring read it entry by entry") {
  MethodCost ring(method(), 2, {100, 0}, false, std::make_unique<ConstantCost>());
  MethodCost none(method(), 2, {0, 0}, false, std::make_unique<ConstantCost>());
  const ChunkShape inside{60, 40, 0}, over{60, 41, 0};
  StepShape shape;
  shape.tokens = 60;
  shape.chunks = {&inside, 1};
  CHECK(ring.step(shape).device == 103 * kUs);
  shape.chunks = {&over, 1};
  // 60 tokens, each with 100 KV entries of the ring and 41 before it: 0.006 and 0.00246 million pairs.
  CHECK(method_us(ring.step(shape).device) == doctest::Approx(103 + 0.6 + 2.46));
  CHECK(none.step(shape).device == 103 * kUs);
}

TEST_CASE("method cost: attention scores of all tokens take the kernel's rounds per chunk") {
  const MeasuredMethod score_heads{"m", "tiny", {{name_of(MethodTerm::kAttentionScore), 7}}, 10, 0.01, 0.02};
  MethodCost cost(score_heads, 2, {0, 8}, false, std::make_unique<ConstantCost>());
  MethodCost none(score_heads, 2, {0, 0}, false, std::make_unique<ConstantCost>());
  // 1,024 tokens are 64 tiles. With 4,224 KV entries (33 key tiles of 8 heads), two CTAs share each key
  // tile; with one entry, and so one key tile, more, none does. 8,448 KV entries fill the GPU; above that
  // the CTAs run in two waves.
  const auto rounds = [&](std::initializer_list<ChunkShape> of) {
    const std::vector<ChunkShape> chunks = of;
    StepShape shape;
    shape.chunks = chunks;
    CHECK(none.step(shape).device == 100 * kUs);
    return method_us(cost.step(shape).device - 100 * kUs) / 7;
  };
  CHECK(rounds({{1024, 3200, 0}}) == 32);
  CHECK(rounds({{1024, 3201, 0}}) == 64);
  CHECK(rounds({{1024, 7424, 0}}) == 64);
  CHECK(rounds({{1024, 7425, 0}}) == 128);
  CHECK(rounds({{1024, 0, 0}}) == 8);   // eight CTAs per key tile, and 64 key tiles over all heads
  CHECK(rounds({{48, 0, 0}}) == 3);     // three row tiles are shared too
  CHECK(rounds({{23, 6144, 0}}) == 2);  // two row tiles, which are not shared
  CHECK(rounds({{23, 6144, 0}, {1001, 0, 0}}) == 2 + 8);
}

TEST_CASE("method cost: steps without a graph, and steps during which the host creates one") {
  const MeasuredMethod forms{
      "m", "tiny", {{name_of(MethodTerm::kNewGraph), 5}, {name_of(MethodTerm::kRecorded), 200}},
      10,  0.01,   0.02};
  MethodCost cost(forms, 2, {}, false, std::make_unique<ConstantCost>());
  const auto step = [&](GraphUse graph, bool chunks) {
    const ChunkShape chunk{9, 0, 0};
    StepShape shape = method_decodes(4);
    shape.graph = graph;
    if (chunks) shape.chunks = {&chunk, 1};
    return std::pair(method_us(cost.step(shape).device), method_us(cost.step(shape).least));
  };
  CHECK(step(GraphUse::kNew, false) == std::pair(105.0, 0.0));
  CHECK(step(GraphUse::kCaptured, false) == std::pair(105.0, 200.0));
  CHECK(step(GraphUse::kInstantiated, false) == std::pair(105.0, 200.0));
  CHECK(step(GraphUse::kReplayed, false) == std::pair(100.0, 0.0));
  for (const GraphUse graph : {GraphUse::kNew, GraphUse::kCaptured, GraphUse::kInstantiated})
    CHECK(step(graph, true) == std::pair(100.0, 0.0));  // prompts never use graphs
}

TEST_CASE("method cost: page selection precedes a layer's recall and counts pages; lists follow idle time") {
  MethodCost cost(method(), 2, {}, true, std::make_unique<ConstantCost>());
  const std::vector<StepPart> parts = cost.ops(method_decodes(5));
  REQUIRE(parts.size() == 3);
  CHECK(std::string(parts[1].name) == "choose");
  CHECK(parts[1].kind == PartKind::kRope);
  const ChunkShape chunk{500, 0, 0};
  StepShape shape = method_decodes(2);
  shape.choosing = 2, shape.chosen_from = 3000, shape.chosen_each = 40;
  const auto of = [&](MethodTerm term) { return method_counts(shape, {})[static_cast<size_t>(term)]; };
  CHECK(of(MethodTerm::kChosenFrom) == 3);
  CHECK(of(MethodTerm::kChosenEach) == 0.4);
  shape.held_more = 1500;
  CHECK(of(MethodTerm::kHeldMore) == 1.5);
  shape.chunks = {&chunk, 1};
  CHECK(of(MethodTerm::kIdleTokens) == 0.5);
  shape.busy_ms = 1;
  CHECK(of(MethodTerm::kIdleTokens) == 0);
  CHECK(of(MethodTerm::kChunkTokens) == 0.5);
}

TEST_CASE("graph keys: they differ exactly as the engine's lists do") {
  StepShape shape = method_decodes(5);
  shape.tokens_padded = 8, shape.logits_rows = 5;
  const GraphShapes::Key key = GraphShapes::key(shape);
  CHECK_FALSE(key.is_none());
  StepShape longer = shape;
  longer.decode_context_sum = 900, longer.chosen_from = 7, longer.chosen_each = 2;
  CHECK(GraphShapes::key(longer) == key);
  StepShape chooses = shape, fills = shape, padded = shape, fewer = shape;
  chooses.choosing = 2, fills.pages_filled = 1, padded.tokens_padded = 16, fewer.logits_rows = 4;
  for (const StepShape& other : {chooses, fills, padded, fewer}) CHECK(GraphShapes::key(other) != key);
  fills.pages_filled = 3;
  StepShape one = shape;
  one.pages_filled = 1;
  CHECK(GraphShapes::key(fills) == GraphShapes::key(one));
  const ChunkShape chunk{9, 0, 0};
  const CompressionShape cut{.tokens = 9, .held = 9, .ranked = 9};
  StepShape prompt = shape, drops = shape;
  prompt.chunks = {&chunk, 1}, drops.compressions = {&cut, 1};
  for (const StepShape& never : {prompt, drops}) CHECK(GraphShapes::key(never).is_none());
  // A key is replayed from its fourth use on. The last two keys are remembered.
  GraphShapes met(2);
  for (const GraphUse use : {GraphUse::kNew, GraphUse::kCaptured, GraphUse::kInstantiated,
                             GraphUse::kReplayed, GraphUse::kReplayed}) {
    CHECK(met.use(key, met.seen(key)) == use);
    met.add(key);
  }
  CHECK(met.use(GraphShapes::key(prompt), 0) == GraphUse::kNew);
  met.add(GraphShapes::key(prompt));
  met.add(GraphShapes::key(chooses));
  CHECK(met.seen(key) == 3);
  met.add(GraphShapes::key(padded));
  CHECK(met.seen(key) == 0);
  const GraphShapes none(0);
  CHECK(none.use(key, 0) == GraphUse::kReplayed);
}

TEST_CASE("method cost: requantised KV entries, and those that decodes unpack") {
  StepShape shape;
  shape.decodes = shape.tokens = 3, shape.decode_context_sum = 9000;
  const auto of = [&](MethodTerm term) { return method_counts(shape, {})[static_cast<size_t>(term)]; };
  CHECK(of(MethodTerm::kUnpackedStep) + of(MethodTerm::kUnpacked) + of(MethodTerm::kRequantised) == 0);
  shape.decodes_unpacked = 2, shape.unpacked_context_sum = 5000, shape.requantised = 640;
  CHECK(of(MethodTerm::kUnpackedStep) == 1);
  CHECK(of(MethodTerm::kUnpacked) == 2);
  CHECK(of(MethodTerm::kUnpackedKvEntries) == 5);
  CHECK(of(MethodTerm::kRequantised) == 0.64);
}

TEST_CASE("method cost: decodes and chunks that read KV entries one by one") {
  StepShape shape;
  shape.decodes = 3, shape.decode_context_sum = 9000;
  ChunkShape chunks[] = {{100, 2000, 0, false}, {200, 1000, 0, false}};
  shape.chunks = chunks;
  const auto of = [&](MethodTerm term) { return method_counts(shape, {})[static_cast<size_t>(term)]; };
  for (const MethodTerm term : {MethodTerm::kListedStep, MethodTerm::kListed, MethodTerm::kListedKvEntries,
                                MethodTerm::kListedTokens, MethodTerm::kListedPairs})
    CHECK(of(term) == 0);
  shape.listed_decodes = 1, chunks[1].listed = true;
  CHECK(of(MethodTerm::kListedStep) == 1);
  CHECK(of(MethodTerm::kListed) == 3);
  CHECK(of(MethodTerm::kListedKvEntries) == 9);
  CHECK(of(MethodTerm::kListedTokens) == doctest::Approx(0.2));
  CHECK(of(MethodTerm::kListedPairs) == doctest::Approx(0.22));
}

TEST_CASE("busy period: a long enough pause starts a new one") {
  const auto at = [](int64_t ms) { return Ticks{ms} * 1000 * kUs; };
  const ChunkShape chunk{512, 0, 0};
  StepShape heavy;
  heavy.tokens = 512, heavy.chunks = {&chunk, 1};
  BusyPeriod busy_period(at(20)), none(0);
  CHECK(busy_period.ms(at(5)) == 0);
  busy_period.add(heavy, at(100), at(150));
  busy_period.add(heavy, at(169), at(200));  // a pause of 19 ms is too short
  none.add(heavy, at(100), at(150));
  CHECK(busy_period.ms(at(210)) == 110);
  CHECK(busy_period.ms(at(220)) == 0);
  CHECK(none.ms(at(150)) == 0);
  busy_period.add(method_decodes(8), at(200), at(230));  // decodes count as a pause
  busy_period.add(heavy, at(230), at(260));
  CHECK(busy_period.ms(at(260)) == 30);
  busy_period.move_base(at(200));
  CHECK(busy_period.ms(at(60)) == 30);
}

TEST_CASE("device drift: medians by kind and the worst row decide, copies are never rescaled") {
  std::vector<Anchor> anchors = {{"a", AnchorKind::kDecode, 100, 101},
                                 {"b", AnchorKind::kDecode, 100, 105},
                                 {"c", AnchorKind::kDecode, 100, 100},
                                 {"d", AnchorKind::kChunk, 1000, 985},
                                 {"e", AnchorKind::kCopy, 10, 10.2}};
  CHECK(drift_of(anchors).decodes == doctest::Approx(0.01));
  CHECK(drift_of(anchors).chunks == doctest::Approx(-0.015));
  CHECK(verdict_of(anchors) == DriftVerdict::kAccepted);
  for (const auto& [us, verdict] : {std::pair(981.0, DriftVerdict::kAccepted),
                                    {979, DriftVerdict::kRescale},
                                    {921, DriftVerdict::kRescale},
                                    {919, DriftVerdict::kRejected}}) {
    anchors[3].measured_us = us;
    CHECK(verdict_of(anchors) == verdict);
  }
  anchors[3].measured_us = 950;
  CHECK(verdict_of(anchors) == DriftVerdict::kRescale);
  CHECK(drift_table(anchors).find("rescaled") != std::string::npos);
  anchors[3].measured_us = 900;
  CHECK(verdict_of(anchors) == DriftVerdict::kRejected);
  anchors[3].measured_us = 1000, anchors[4].measured_us = 11;
  CHECK(verdict_of(anchors) == DriftVerdict::kRejected);
  anchors[4].measured_us = 10.2, anchors[1].measured_us = 91;
  CHECK(drift_of(anchors).decodes == 0);
  CHECK(verdict_of(anchors) == DriftVerdict::kRejected);
  CHECK(drift_table(anchors).find("differs from its kind: b (-9.00 %)") != std::string::npos);
  anchors[1].measured_us = 96;
  CHECK(verdict_of(anchors) == DriftVerdict::kAccepted);
  MeasuredDevice device;
  device.tables = {{"qkv", "s", {8, 256, 512}, {}, {{10, 9, 11}, {20, 20, 20}, {30, 30, 30}}},
                   {"chunk attention", "s", {8}, {}, {{10, 10, 10}}},
                   {"decode attention", "s", {512}, {}, {{10, 10, 10}}},
                   {"copy in", "s", {8}, {}, {{10, 10, 10}}}};
  const MeasuredDevice now = rescaled(device, {.decodes = 0.1, .chunks = -0.1}, 256);
  CHECK(now.tables[0].at[0].p10 == doctest::Approx(9.9));
  CHECK(now.tables[0].at[1].us == doctest::Approx(22));
  CHECK(now.tables[0].at[2].us == doctest::Approx(27));
  CHECK(now.tables[1].at[0].us == doctest::Approx(9));
  CHECK(now.tables[2].at[0].us == doctest::Approx(11));
  CHECK(now.tables[3].at[0].us == doctest::Approx(10));
}

}  // namespace kvtwin
