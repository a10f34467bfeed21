#include "models/cost_tables/operation_cost.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/cost/graph_shapes.h"
#include "models/cost/partwise_cost.h"
#include "models/cost/recent_load.h"
#include "models/cost_tables/device_drift.h"
#include "models/cost_tables/other_operations.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_directory.h"

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

MeasuredOperations operations() {
  return {{{name_of(Family::kRowSlot), 500},
           {name_of(Family::kTableEntry), 1000},
           {name_of(Family::kCapture), 2000},
           {name_of(Family::kRanked), 100},
           {name_of(Family::kChoice), 3000},
           {name_of(Family::kCandidate), 1}},
          10,
          0.01,
          0.02};
}

MethodWork small_work() {
  MethodWork work;
  work.layers = 2, work.kv_heads = 4, work.query_heads = 8, work.head_dim = 128, work.page_tokens = 16;
  return work;
}

Ticks sum(const std::vector<StepPart>& parts) {
  Ticks out = 0;
  for (const StepPart& part : parts) out += part.times * part.each;
  return out;
}

double in_us(Ticks ticks) { return static_cast<double>(ticks) / kUs; }

StepShape method_decodes(uint32_t count) {
  StepShape shape;
  shape.decodes = shape.tokens = count;
  return shape;
}

// Counts that are not 0, by name.
using Counts = std::map<std::string, double>;
Counts counted(const StepShape& shape, const MethodWork& work) {
  Counts out;
  const FamilyCounts counts = family_counts(shape, work);
  for (size_t i = 0; i < kOperationFamilies; ++i) {
    if (counts[i] != 0) out[name_of(static_cast<Family>(i))] = counts[i];
  }
  return out;
}

Counts named(std::initializer_list<std::pair<Family, double>> of) {
  Counts out;
  for (const auto& [family, count] : of) out[name_of(family)] = count;
  return out;
}

}  // namespace

TEST_CASE("operation cost: counts times prices, by sum, by part, and by place in the step") {
  MethodWork work = small_work();
  work.lists = work.captures = true;
  OperationCost cost(operations(), work, std::make_unique<ConstantCost>());
  StepShape shape = method_decodes(5);
  shape.decode_context_sum = 5 * 15;
  // 40 slots of 0.5 us; five pages, and half a page for each request, of 1 us.
  const double lists = 20 + 5 + 5 * 15.0 / 32;
  CHECK(in_us(cost.step(shape).device) == doctest::Approx(100 + lists));
  const CompressionShape cut[] = {{.tokens = 400, .held = 300, .ranked = 300},
                                  {.tokens = 9, .held = 700, .ranked = 1}};
  shape.compressions = cut;
  const StepCost both = cost.step(shape);
  const double behind = 301 * 8 * 0.1, layers = 2 * 2 * 2;
  CHECK(in_us(both.device) == doctest::Approx(100 + lists + layers + behind));
  CHECK(in_us(both.compression[static_cast<size_t>(CompressionPart::kScore)]) == doctest::Approx(behind));
  const std::vector<StepPart> parts = cost.ops(shape);
  CHECK(sum(parts) == both.device);
  // A part for each family, in its place: lists first, layers before attention, compressions last.
  const std::pair<std::string, PartPlace> places[] = {{name_of(Family::kRowSlot), PartPlace::kBefore},
                                                      {name_of(Family::kTableEntry), PartPlace::kBefore},
                                                      {parts[2].name, PartPlace::kLayer},
                                                      {name_of(Family::kCapture), PartPlace::kLayer},
                                                      {"attention", PartPlace::kLayer},
                                                      {name_of(Family::kRanked), PartPlace::kAfter}};
  REQUIRE(parts.size() == std::size(places));
  for (size_t i = 0; i < parts.size(); ++i) {
    CAPTURE(i);
    CHECK(std::string(parts[i].name) == places[i].first);
    CHECK(parts[i].place == places[i].second);
  }
  Ticks evidence = 0;
  for (const Ticks one : both.by_evidence) evidence += one;
  CHECK(evidence == both.device);
  CHECK(cost.range(shape).low < both.device);
  CHECK(cost.range(shape).high > both.device);
}

TEST_CASE("operation counts: what each kind of method does in a step, in logical sizes") {
  const ChunkShape chunk{100, 60, 0};
  const CompressionShape cut[] = {{.tokens = 160, .held = 160, .ranked = 120, .retained = 50}};
  StepShape decodes = method_decodes(3);
  decodes.decode_context_sum = 3 * 31, decodes.tokens_padded = 4;
  StepShape prompt;
  prompt.chunks = {&chunk, 1}, prompt.compressions = cut, prompt.tokens = 100;
  const double heads = 8, half = 15.0 / 32;  // of a page
  MethodWork lists = small_work();
  lists.lists = true;
  CHECK(counted(decodes, small_work()).empty());
  CHECK(
      counted(decodes, lists) ==
      named({{Family::kListedStep, 1}, {Family::kRowSlot, 4 * heads}, {Family::kTableEntry, 6 + 3 * half}}));
  CHECK(counted(prompt, lists) == named({{Family::kListedStep, 1},
                                         {Family::kRowSlot, 100 * heads},
                                         {Family::kTableEntry, 10 + half},
                                         {Family::kChunkPlan, 2},
                                         {Family::kCompression, 1},
                                         {Family::kRanked, 120 * heads},
                                         {Family::kRetained, 50 * heads}}));
  struct Row {
    const char* what;
    void (*set)(MethodWork*);
    std::initializer_list<std::pair<Family, double>> decodes, prompt;  // in addition
  };
  const Row rows[] = {
      {"gates",
       [](MethodWork* w) { w->gates = true; },
       {{Family::kGate, 2}, {Family::kGateRow, 2 * 4}},
       {{Family::kGate, 2}, {Family::kGateRow, 2 * 100}}},
      {"counts", [](MethodWork* w) { w->counts_by_scores = true; }, {}, {{Family::kCounted, 120 * heads}}},
      {"captures", [](MethodWork* w) { w->captures = true; }, {}, {{Family::kCapture, 2}}},
      {"scores by attention",
       [](MethodWork* w) { w->asked_rows = 32; },
       {},
       {{Family::kAsked, 2}, {Family::kAskedPair, 120 * 32 * 2 * 8}, {Family::kRanked, -120 * heads}}},
      {"staged compressions",
       [](MethodWork* w) { w->staged = true; },
       {},
       {{Family::kStagedLayer, 2}, {Family::kCompression, -1}}},
      {"groups",
       [](MethodWork* w) { w->groups = 8; },
       {{Family::kTable, 8 * 3}, {Family::kTableEntry, 7 * (6 + 3 * half)}},
       {{Family::kTable, 8}, {Family::kTableEntry, 7 * (10 + half)}}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    MethodWork work = lists;
    row.set(&work);
    const auto more = [](Counts with, std::initializer_list<std::pair<Family, double>> of) {
      for (const auto& [family, count] : of) with[name_of(family)] += count;
      std::erase_if(with, [](const auto& one) { return one.second == 0; });
      return with;
    };
    CHECK(counted(decodes, work) == more(counted(decodes, lists), row.decodes));
    CHECK(counted(prompt, work) == more(counted(prompt, lists), row.prompt));
  }
  // Layers score staged entries of all requests at once; other compressions follow one another.
  const CompressionShape two[] = {cut[0], cut[0]};
  prompt.compressions = two;
  MethodWork staged = lists;
  staged.staged = true;
  CHECK(counted(prompt, lists).at(name_of(Family::kCompression)) == 2);
  CHECK(counted(prompt, staged).at(name_of(Family::kStagedLayer)) == 2);
}

TEST_CASE("operation counts: chunks over a ring's end, and entries that are listed, are read one by one") {
  MethodWork work = small_work();
  work.lists = true, work.ring_slots = 100, work.moves = false;
  ChunkShape chunk{60, 40, 0};
  StepShape shape;
  shape.tokens = 60;
  shape.chunks = {&chunk, 1};
  const auto of = [&](Family family) { return family_counts(shape, work)[static_cast<size_t>(family)]; };
  CHECK(of(Family::kListedPair) == 0);
  chunk.context = 41;
  CHECK(of(Family::kListedPair) == 60.0 * 100 * 2 * 8);
  CHECK(of(Family::kListedChunk) == 8 * 100);
  work.ring_slots = 0;
  CHECK(of(Family::kListedPair) == 0);
  chunk.listed = true;
  CHECK(of(Family::kListedPair) == 60.0 * (41 + 30) * 2 * 8);
  CHECK(of(Family::kListedChunk) == 8 * (41 + 30));
  shape.decodes = 3, shape.decode_context_sum = 900;
  CHECK(of(Family::kListedEntry) == 0);
  const double entries = of(Family::kTableEntry);
  shape.listed_decodes = 1;
  CHECK(of(Family::kListedEntry) == 900 * 8);
  CHECK(of(Family::kTableEntry) == entries + 903);
}

TEST_CASE("operation counts: attention scores of all tokens take the kernel's rounds per chunk") {
  MethodWork work = small_work();
  work.kv_heads = 8, work.lists = work.sums = true;
  // 1,024 tokens are 64 tiles. With 4,224 KV entries (33 key tiles of 8 heads), two CTAs share each key
  // tile; with one entry, and so one key tile, more, none does. 8,448 KV entries fill the GPU; above that
  // the CTAs run in two waves.
  const auto of_layer = [&](Family family, std::initializer_list<ChunkShape> of) {
    const std::vector<ChunkShape> chunks = of;
    StepShape shape;
    shape.chunks = chunks;
    return family_counts(shape, work)[static_cast<size_t>(family)] / work.layers;
  };
  const auto rounds = [&](std::initializer_list<ChunkShape> of) { return of_layer(Family::kScoreRound, of); };
  CHECK(rounds({{1024, 3200, 0}}) == 32);
  CHECK(rounds({{1024, 3201, 0}}) == 64);
  CHECK(rounds({{1024, 7424, 0}}) == 64);
  CHECK(rounds({{1024, 7425, 0}}) == 128);
  CHECK(rounds({{1024, 0, 0}}) == 8);   // eight CTAs per key tile, and 64 key tiles over all heads
  CHECK(rounds({{48, 0, 0}}) == 3);     // three row tiles are shared too
  CHECK(rounds({{23, 6144, 0}}) == 2);  // two row tiles, which are not shared
  CHECK(rounds({{23, 6144, 0}, {1001, 0, 0}}) == 2 + 8);
  CHECK(of_layer(Family::kScoredChunk, {{23, 6144, 0}, {1001, 0, 0}}) == 2);  // each is scored alone
  work.sums = false;
  CHECK(of_layer(Family::kScoredChunk, {{1024, 0, 0}}) == 0);
}

TEST_CASE("operation counts: choices, what the host has, and what leaves the GPU") {
  MethodWork quest = small_work();
  quest.chooses = true, quest.selectable = 40;
  MethodWork arkvale = quest;
  arkvale.recalls = true;
  MethodWork freekv = arkvale;
  freekv.ahead = true;
  StepShape shape = method_decodes(2);
  shape.choosing = 2, shape.chosen_from = 3000, shape.logits_rows = 2;
  Counts want = named({{Family::kChoice, 2}, {Family::kChoosing, 2 * 2}, {Family::kCandidate, 3000 * 8}});
  CHECK(counted(shape, quest) == want);
  want[name_of(Family::kRecall)] = 2;
  CHECK(counted(shape, arkvale) == want);
  want[name_of(Family::kRecallAhead)] = 2;
  CHECK(counted(shape, freekv) == want);
  const ChunkShape chunk{9, 0, 0};
  shape.chunks = {&chunk, 1}, shape.logits_rows = 3;  // a prompt ends
  want[name_of(Family::kEnteredPage)] = 8 * 40;
  CHECK(counted(shape, freekv) == want);
}

TEST_CASE("graph keys: they differ exactly as the engine's lists do") {
  StepShape shape = method_decodes(5);
  shape.tokens_padded = 8, shape.logits_rows = 5;
  const GraphShapes::Key key = GraphShapes::key(shape);
  CHECK_FALSE(key.is_none());
  StepShape longer = shape;
  longer.decode_context_sum = 900, longer.chosen_from = 7;
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

TEST_CASE(
    "operation counts: requantised KV entries, those that decodes unpack, and chunks over two formats") {
  StepShape shape = method_decodes(3);
  shape.decode_context_sum = 9000;
  MethodWork work = small_work();
  CHECK(counted(shape, work).empty());
  shape.decodes_unpacked = 2, shape.unpacked_context_sum = 5000, shape.requantised = 640;
  const ChunkShape chunk{10, 300, 0};
  shape.chunks = {&chunk, 1};
  Counts want = named({{Family::kUnpackStep, 2},
                       {Family::kUnpack, 4},
                       {Family::kUnpacked, 5000 * 8},
                       {Family::kRequantised, 640 * 8}});
  CHECK(counted(shape, work) == want);
  work.two_formats = true;  // then the chunk unpacks the entries before it, as those decodes do
  want[name_of(Family::kUnpack)] = 2 * 3;
  want[name_of(Family::kUnpacked)] = (5000 + 300) * 8;
  CHECK(counted(shape, work) == want);
  shape.decodes_unpacked = 0, shape.unpacked_context_sum = 0;
  want[name_of(Family::kUnpack)] = 2;
  want[name_of(Family::kUnpacked)] = 300 * 8;
  CHECK(counted(shape, work) == want);
  const ChunkShape first{10, 0, 0};
  shape.chunks = {&first, 1};
  CHECK(counted(shape, work) == named({{Family::kRequantised, 640 * 8}}));
}

TEST_CASE("other operations: the mean of profiles, family by family") {
  const MeasuredOperations first{{{name_of(Family::kChoice), 10}}, 5, 0.01, 0.04};
  const MeasuredOperations second{
      {{name_of(Family::kChoice), 20}, {name_of(Family::kRanked), 6}}, 7, 0.02, 0.03};
  const FamilyCounts mean = prices_of(mean_of_operations(std::vector{first, second}));
  CHECK(mean[static_cast<size_t>(Family::kChoice)] == doctest::Approx(15));
  CHECK(mean[static_cast<size_t>(Family::kRanked)] == doctest::Approx(3));
  CHECK(mean_of_operations(std::vector{first, second}).error_p90 == 0.04);
}

TEST_CASE("other operations: those of a file of the same GPU name the model that they were measured with") {
  const std::string folder = kvtwin::testing::source_dir() + "/models/measured";
  const std::string file = profile_with_operations(folder, "NVIDIA H200");
  CHECK(file == folder + "/h200.textproto");
  auto device = load_measured_device(file);
  REQUIRE(device);
  device->model = "qwen3-14b";
  const auto found = operations_of_profile(file, device->gpu);
  REQUIRE(found);
  CHECK(found->model == "llama-3.1-8b");
  device->operations = *found;
  const auto again = parse_measured_device(measured_device_textproto(*device), "it");
  REQUIRE(again);
  CHECK(again->operations->model == "llama-3.1-8b");
  CHECK(prices_of(*again->operations) == prices_of(*found));

  const auto other = operations_of_profile(folder + "/h100.textproto", device->gpu);
  REQUIRE_FALSE(other);
  CHECK(other.error().text().find("NVIDIA H100 80GB HBM3, and this is NVIDIA H200") != std::string::npos);
  CHECK(profile_with_operations(folder, "another").empty());
}

TEST_CASE("other operations: files of one GPU that share their prices count once in a mean over GPUs") {
  const std::string source = kvtwin::testing::source_dir() + "/models/measured";
  const auto folder = kvtwin::testing::make_temp_directory("other_operations");
  for (const char* name : {"h100", "h200"})
    std::filesystem::copy_file(source + "/" + name + ".textproto",
                               folder / (std::string(name) + ".textproto"));
  auto device = load_measured_device(source + "/h200.textproto");
  REQUIRE(device);
  MeasuredDevice another = *device;
  another.gpu = "another GPU";
  const OtherOperations before = operations_of_others(folder.string(), another);
  device->model = "qwen3-14b", device->operations->model = "llama-3.1-8b";
  std::ofstream(folder / "of_another_model.textproto") << measured_device_textproto(*device);
  const OtherOperations after = operations_of_others(folder.string(), another);
  REQUIRE((before.operations && after.operations));
  CHECK(prices_of(*after.operations) == prices_of(*before.operations));
  CHECK(after.gpus == std::vector<std::string>{"NVIDIA H100 80GB HBM3", "NVIDIA H200"});
  std::filesystem::remove_all(folder);
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
