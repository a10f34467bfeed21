#include "models/cost_tables/measured_cost.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "models/cost/chunk_tiles.h"
#include "models/cost/graph_shapes.h"
#include "models/cost/recent_load.h"
#include "models/cost_tables/cost_factory.h"
#include "tests/unit/models/tiny_device.h"

namespace kvtwin {
namespace {

// Every operation takes 1 us + rows / 100; decode attention takes 2 us + KV entries / 1,000; the host takes
// 5 us.
MeasuredDevice device() {
  MeasuredDevice out;
  out.gpu = "a \"GPU\"", out.model = "tiny", out.sm_count = 4;
  const MeasuredShapes s(tiny());
  const std::pair<const char*, std::string> dense[] = {
      {"embed", s.hidden}, {"norm", s.hidden},     {"qkv", s.qkv},
      {"append", s.heads}, {"gate up", s.gate_up}, {"attention out", s.attention_out},
      {"down", s.down},    {"logits", s.logits},   {"activation", s.intermediate},
      {"sample", s.vocab}};
  for (const auto& [name, shape] : dense)
    out.tables.push_back({name, shape, {1, 100, 300}, {}, {us(1.01), us(2), us(4)}});
  out.tables.push_back(
      {"decode attention", s.heads, {1, 1, 4, 4}, {1000, 4000, 1000, 4000}, {us(3), us(6), us(3), us(6)}});
  out.tables.push_back({"decode host", s.model, {1, 4}, {}, {us(5), us(8)}});
  out.tables.push_back(
      {"chunk attention", s.heads, {32, 32, 128, 128}, {0, 1024, 0, 1024}, {us(9), us(23), us(10), us(24)}});
  out.tables.push_back({"chunk host", s.model, {32, 128}, {}, {us(20), us(30)}});
  return out;
}

std::unique_ptr<MeasuredCost> model(const MeasuredDevice& from) {
  auto made = MeasuredCost::make(from, tiny(), {}, "here");
  REQUIRE(made);
  return std::move(*made);
}

StepShape decodes(uint32_t count, uint64_t sum, uint32_t padded) {
  StepShape s;
  s.decodes = s.tokens = s.logits_rows = count;
  s.tokens_padded = padded;
  s.decode_context_sum = sum, s.decode_context_max = static_cast<uint32_t>(sum);
  return s;
}

double us_of(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs / 1e3; }

}  // namespace

TEST_CASE("measured cost: a step is the sum of its measured operations") {
  const auto m = model(device());
  // At measured points: embed; 3 layers of 2 norms and 6 operations; final norm, logits, sample; attention;
  // host.
  const StepCost on = m->step(decodes(1, 1000, 100));
  CHECK(us_of(on.device) == doctest::Approx(2 + 3 * 8 * 2 + 3 * 1.01 + 3 * 3 + 5).epsilon(1e-4));
  CHECK(on.by_evidence[static_cast<size_t>(Evidence::kMeasured)] > 0);
  // Between points: rows 200 between 100 and 300; KV entries 2,500 between 1,000 and 4,000; 4 requests read
  // as many as 1.
  const StepCost between = m->step(decodes(4, 2500, 200));
  const double host = 8, small = 1.01 + 0.99 * 3 / 99;
  CHECK(us_of(between.device) == doctest::Approx(3 + 3 * 8 * 3 + 3 * small + 3 * 4.5 + host).epsilon(1e-3));
  CHECK(between.by_evidence[static_cast<size_t>(Evidence::kExtrapolated)] == 0);
  // Beyond the last point the last segment is extended, and the evidence says extrapolated.
  const StepCost beyond = m->step(decodes(1, 10'000, 100));
  CHECK(beyond.by_evidence[static_cast<size_t>(Evidence::kExtrapolated)] > 0);
  CHECK(us_of(beyond.device - on.device) == doctest::Approx(3 * 9).epsilon(1e-3));
}

TEST_CASE("measured cost: chunks beyond the measured contexts keep the time of a unit of work") {
  // The last two contexts differ by more than their work: the table's trend must not go on.
  MeasuredDevice steep = device();
  for (MeasuredTable& table : steep.tables)
    if (table.operation == "chunk attention") table.at[3] = us(240);
  const auto m = model(steep);
  const auto attention = [&](uint32_t context) {
    const ChunkShape chunk{128, context, 0};
    StepShape shape;
    shape.tokens = shape.tokens_padded = 128;
    shape.chunks = {&chunk, 1};
    for (const StepPart& part : m->ops(shape))
      if (part.kind == PartKind::kAttention) return std::pair(us_of(part.each), part.evidence);
    return std::pair(0.0, Evidence::kRoofline);
  };
  ChunkTiles tiles(1, 4, 4);
  const auto work = [&](uint32_t context) {
    const ChunkShape chunk{128, context, 0};
    return tiles.makespan({&chunk, 1}) + 2;
  };
  CHECK(attention(1024).first == doctest::Approx(240).epsilon(1e-3));
  CHECK(attention(4096).first == doctest::Approx(240 * work(4096) / work(1024)).epsilon(1e-3));
  CHECK(attention(4096).second == Evidence::kExtrapolated);
}

TEST_CASE("measured cost: parts sum to the step, and ranges contain it") {
  const auto m = model(device());
  const ChunkShape chunks[] = {{64, 100, 0}, {20, 0, 0}};
  StepShape mixed = decodes(2, 3000, 100);
  mixed.tokens = 86, mixed.chunks = chunks;
  for (const StepShape& shape : {decodes(3, 900, 8), mixed}) {
    Ticks sum = 0;
    for (const StepPart& part : m->ops(shape)) sum += part.times * part.each;
    CHECK(sum == m->step(shape).device);
    const StepRange range = m->range(shape);
    CHECK(range.low < sum);
    CHECK(range.high > sum);
  }
  MeasuredDevice uncertain = device();
  uncertain.held_out = {{"x", 100, 110}};
  const auto wider = model(uncertain);
  CHECK(wider->range(mixed).high > m->range(mixed).high);
  CHECK(wider->step(mixed).device == m->step(mixed).device);
}

TEST_CASE("measured cost: a step without samples has no output head") {
  const auto m = model(device());
  const ChunkShape chunk{32, 0, 0};
  StepShape shape;
  shape.tokens = shape.tokens_padded = 32, shape.chunks = {&chunk, 1};
  const Ticks without = m->step(shape).device;
  shape.logits_rows = 1;
  CHECK(us_of(m->step(shape).device - without) == doctest::Approx(3 * 1.01).epsilon(1e-3));
}

TEST_CASE("chunk tiles: chunks share the SMs") {
  // Four SMs, one KV head, tiles of 32 tokens; a tile with c KV entries costs ceil(c / 128) + 1.5.
  ChunkTiles tiles(1, 4, 4);
  CHECK(tiles.makespan({}) == 0);
  const ChunkShape one{32, 0, 0}, long_one{32, 1248, 0}, four{128, 0, 0}, five{160, 0, 0};
  CHECK(tiles.makespan({&one, 1}) == doctest::Approx(2.5));
  CHECK(tiles.makespan({&long_one, 1}) == doctest::Approx(11.5));
  CHECK(tiles.makespan({&four, 1}) == doctest::Approx(2.5));
  // Tiles of 2, 1, 1, 1, 1: the last one follows the first of the short ones.
  CHECK(tiles.makespan({&five, 1}) == doctest::Approx(5));
  // Four long chunks run concurrently; the fifth follows.
  const std::vector<ChunkShape> many(5, long_one);
  CHECK(tiles.makespan({many.data(), 4}) == doctest::Approx(11.5));
  CHECK(tiles.makespan(many) == doctest::Approx(23));
  // Short chunks fill the gaps next to a long one.
  const ChunkShape uneven[] = {long_one, one, one, one, one, one, one};
  CHECK(tiles.makespan(uneven) == doctest::Approx(11.5));
}

TEST_CASE("measured cost: chunks after idle time take the time measured for that case") {
  MeasuredDevice measured = device();
  measured.tables.push_back({"chunk after load",
                             MeasuredShapes(tiny()).model,
                             {100, 100, 100, 300, 300, 300},
                             {0, 500, 1000, 0, 500, 1000},
                             {us(80), us(90), us(100), us(160), us(190), us(200)}});
  measured.figures = {{"chunk load window", "ms", 300, 300, 300}};
  const auto m = model(measured);
  CHECK(m->load_window() == Ticks{300'000'000} * kTicksPerNs);
  CHECK(model(device())->load_window() == 0);
  const ChunkShape chunk{100, 0, 0};
  StepShape shape;
  shape.tokens = shape.tokens_padded = 100, shape.chunks = {&chunk, 1};
  const double sustained = us_of(m->step(shape).device);
  CHECK(sustained == us_of(model(device())->step(shape).device));
  for (const auto& [load, fraction] : {std::pair(0u, 0.8), std::pair(250u, 0.85), std::pair(750u, 0.95)}) {
    shape.chunk_load = load;
    CHECK(us_of(m->step(shape).device) == doctest::Approx(fraction * sustained).epsilon(1e-4));
    Ticks sum = 0, attention = 0;
    for (const StepPart& part : m->ops(shape)) {
      sum += part.times * part.each;
      if (part.kind == PartKind::kAttention) attention += part.times * part.each;
    }
    CHECK(sum == m->step(shape).device);
    CHECK(attention > 0);
    CHECK(attention == m->step(shape).attention);
    CHECK(m->range(shape).high > sum);
  }
  // A step that decodes is not slower.
  StepShape decode = decodes(1, 1000, 100);
  const Ticks quiet = m->step(decode).device;
  decode.chunk_load = 0;
  CHECK(m->step(decode).device == quiet);
}

TEST_CASE("measured cost: steps launched without a graph have their own host time") {
  MeasuredDevice measured = device();
  measured.tables.push_back({"launched host", MeasuredShapes(tiny()).model, {1, 4}, {}, {us(105), us(108)}});
  const auto launched = MeasuredCost::make(measured, tiny(), {}, "here", DecodeGraphs::kNone);
  REQUIRE(launched);
  const StepShape shape = decodes(4, 2500, 200);
  CHECK(us_of((*launched)->step(shape).device - model(measured)->step(shape).device) == doctest::Approx(100));
}

TEST_CASE("measured cost: with chunks the host's time depends on all rows and on the decoding requests") {
  MeasuredDevice measured = device();
  const auto usual = model(measured);
  measured.tables.push_back({"chunk host mixed", MeasuredShapes(tiny()).model, {1, 4}, {}, {us(50), us(80)}});
  const auto mixed = model(measured);
  const ChunkShape chunk{32, 0, 0};
  StepShape shape;
  shape.tokens = shape.tokens_padded = 32, shape.chunks = {&chunk, 1};
  const Ticks alone = usual->step(shape).device;
  CHECK(mixed->step(shape).device == alone);
  const auto host = [&](MeasuredCost* cost) {
    for (const StepPart& part : cost->ops(shape)) {
      if (part.kind == PartKind::kHost) return us_of(part.each);
    }
    return -1.0;
  };
  CHECK(host(usual.get()) == doctest::Approx(20));
  shape.decodes = 4, shape.decode_context_sum = 1000, shape.tokens = 36, shape.tokens_padded = 80;
  CHECK(host(usual.get()) == doctest::Approx(25 + 3));  // 80 rows; 4 decodes against one
  CHECK(host(mixed.get()) == doctest::Approx(25 + 80));
}

TEST_CASE("measured cost: of a step's time, what attention takes") {
  const ChunkShape chunk{32, 100, 0};
  StepShape shape = decodes(4, 2500, 200);
  shape.tokens = shape.tokens_padded = 36, shape.chunks = {&chunk, 1};
  const auto m = model(device());
  Ticks attention = 0;
  for (const StepPart& part : m->ops(shape)) {
    if (part.kind == PartKind::kAttention) attention += part.times * part.each;
  }
  CHECK(attention > 0);
  CHECK(m->step(shape).attention == attention);
  CHECK(m->step(shape).added() == 0);
}

TEST_CASE("measured cost: steps of engines that make graphs before, when a form comes up, or never") {
  MeasuredDevice measured = device();
  const std::string name = MeasuredShapes(tiny()).model;
  const Ticks replay = model(measured)->step(decodes(4, 2500, 200)).device;
  measured.tables.push_back({"launched host", name, {1, 4}, {}, {us(105), us(108)}});
  struct Row {
    DecodeGraphs graphs;
    GraphUse use;
    double more;
    uint32_t kept;
  };
  for (const Row& row :
       {Row{DecodeGraphs::kMet, GraphUse::kReplayed, 0, 64}, Row{DecodeGraphs::kMet, GraphUse::kNew, 100, 64},
        Row{DecodeGraphs::kMet, GraphUse::kInstantiated, 100, 64},
        Row{DecodeGraphs::kPrepared, GraphUse::kReplayed, 0, 0},
        Row{DecodeGraphs::kNone, GraphUse::kReplayed, 100, 0}}) {
    const auto m = MeasuredCost::make(measured, tiny(), {}, "here", row.graphs);
    REQUIRE(m);
    StepShape shape = decodes(4, 2500, 200);
    shape.graph = row.use;
    CHECK(us_of((*m)->step(shape).device - replay) == doctest::Approx(row.more));
    CHECK((*m)->graphs_kept() == row.kept);
  }
}

TEST_CASE("measured cost: decodes after chunks are slower until the clock recovers") {
  MeasuredDevice measured = device();
  const std::string name = MeasuredShapes(tiny()).model;
  measured.tables.push_back({"decode after load",
                             name,
                             {20, 20, 20, 100, 100, 100},
                             {2, 40, 100, 2, 40, 100},
                             {us(102), us(101), us(100), us(106), us(103), us(100)}});
  const auto m = model(measured);
  StepShape shape = decodes(4, 2500, 200);
  const double calm = us_of(m->step(shape).device);
  for (const auto& [length, ms, factor] :
       {std::tuple(20u, 2u, 1.02), std::tuple(100u, 0u, 1.06), std::tuple(60u, 40u, 1.02),
        std::tuple(500u, 70u, 1.015), std::tuple(100u, 100u, 1.0), std::tuple(100u, 5000u, 1.0)}) {
    shape.busy_before_ms = length, shape.calm_ms = ms;
    CHECK(us_of(m->step(shape).device) == doctest::Approx(factor * calm).epsilon(1e-4));
  }
}

// The tables have 100 for a chunk of 100 rows, the busy period of such chunks 90 to 99; of 300 rows there is
// no period, and the usual time of the other size's period, 91.5, is what the tables have.
TEST_CASE("measured cost: a chunk of the busy period's size takes what it took there, others follow it") {
  MeasuredDevice measured = device();
  const std::string name = MeasuredShapes(tiny()).model;
  measured.tables.push_back({"chunk after load", name, {100, 300}, {1000, 1000}, {us(100), us(200)}});
  measured.tables.push_back({"chunk by busy time", name, {100, 100}, {0, 600}, {us(90), us(99)}});
  measured.figures = {{"chunk load window", "ms", 40, 40, 40},
                      {"chunk load is forgotten in", "ms", 50, 50, 50},
                      {"chunk tables hold from", "ms", 40, 40, 40},
                      {"chunk tables hold to", "ms", 160, 160, 160}};
  const auto m = model(measured), tables = model(device());
  for (const auto& [rows, usual] : {std::pair(100u, 100.0), std::pair(300u, 91.5)}) {
    const ChunkShape chunk{rows, 0, 0};
    StepShape shape;
    shape.tokens = shape.tokens_padded = rows, shape.chunks = {&chunk, 1};
    for (const auto& [busy, then] : {std::pair(0u, 90.0), std::pair(600u, 99.0)}) {
      shape.busy_ms = busy;
      CHECK(us_of(m->step(shape).device) ==
            doctest::Approx(then / usual * us_of(tables->step(shape).device)).epsilon(1e-4));
      shape.chunk_load = 500;  // the same at any load by these tables; the period counts half
      CHECK(us_of(m->step(shape).device) ==
            doctest::Approx((1 + then / usual) / 2 * us_of(tables->step(shape).device)).epsilon(1e-4));
      shape.chunk_load = kSustainedLoad;
    }
  }
}

TEST_CASE("measured cost: tables of few rows hold between decodes, and further chunks cost host time") {
  MeasuredDevice measured = device();
  const std::string name = MeasuredShapes(tiny()).model;
  measured.tables.push_back(
      {"chunk after load", name, {32, 32, 128, 128}, {0, 1000, 0, 1000}, {us(80), us(100), us(80), us(100)}});
  measured.figures = {{"chunk load window", "ms", 300, 300, 300},
                      {"chunk tables hold unloaded up to", "rows", 64, 64, 64}};
  const auto m = model(measured);
  const double few = us_of(model(device())
                               ->step([] {
                                 static const ChunkShape chunk{32, 0, 0};
                                 StepShape shape;
                                 shape.tokens = shape.tokens_padded = 32, shape.chunks = {&chunk, 1};
                                 return shape;
                               }())
                               .device);
  const ChunkShape chunk{32, 0, 0}, more{100, 0, 0};
  StepShape shape;
  shape.tokens = shape.tokens_padded = 32, shape.chunks = {&chunk, 1};
  CHECK(us_of(m->step(shape).device) == doctest::Approx(1.25 * few).epsilon(1e-4));
  shape.chunk_load = 0;
  CHECK(us_of(m->step(shape).device) == doctest::Approx(few).epsilon(1e-4));
  shape.tokens = shape.tokens_padded = 100, shape.chunks = {&more, 1};
  const double quiet = us_of(m->step(shape).device);
  shape.chunk_load = 1000;
  CHECK(us_of(m->step(shape).device) == doctest::Approx(1.25 * quiet).epsilon(1e-4));
  measured.tables.push_back({"chunk host several", name, {1, 2, 4}, {}, {us(0), us(12), us(40)}});
  const auto several = model(measured);
  const std::vector<ChunkShape> three(3, ChunkShape{10, 0, 0});
  shape.tokens = 30, shape.tokens_padded = 32, shape.chunks = three, shape.chunk_load = 0;
  CHECK(us_of(several->step(shape).device - m->step(shape).device) == doctest::Approx(26));
}

TEST_CASE("graph shapes: how often a graph key was used") {
  GraphShapes shapes(1);
  const GraphShapes::Key key = GraphShapes::key(decodes(4, 100, 4));
  for (uint32_t met = 0; met < 5; ++met) {
    CHECK(shapes.seen(key) == std::min(met, GraphShapes::kMost));
    shapes.add(key);
  }
  const ChunkShape chunk{300, 0, 0};
  StepShape shape = decodes(4, 100, 4);
  shape.tokens = shape.tokens_padded = 304, shape.chunks = {&chunk, 1};
  CHECK(GraphShapes::key(shape).is_none());
  shapes.add(GraphShapes::key(shape));
  CHECK(shapes.seen(key) == GraphShapes::kMost);
  CHECK(shapes.seen(GraphShapes::key(decodes(3, 100, 4))) == 0);
  CHECK(GraphShapes(0).use(key, 0) == GraphUse::kReplayed);
}

TEST_CASE("busy period: the time since its end, and its length") {
  const Ticks ms = Ticks{1'000'000} * kTicksPerNs;
  const ChunkShape chunk{512, 0, 0};
  StepShape heavy;
  heavy.tokens = 512, heavy.chunks = {&chunk, 1};
  BusyPeriod busy_period(20 * ms);
  CHECK(busy_period.calm_ms(0) == kCalm);
  busy_period.add(heavy, 100 * ms, 110 * ms);
  busy_period.add(heavy, 125 * ms, 140 * ms);
  CHECK(busy_period.calm_ms(143 * ms) == 3);
  CHECK(busy_period.length_ms() == 40);
  CHECK(busy_period.ms(143 * ms) == 43);
  busy_period.add(heavy, 170 * ms, 180 * ms);
  CHECK(busy_period.length_ms() == 10);
}

TEST_CASE("recent load: a fraction of the window, which ages out") {
  RecentLoad none(0);
  const ChunkShape chunk{512, 0, 0};
  StepShape heavy;
  heavy.tokens = 512, heavy.chunks = {&chunk, 1};
  none.add(heavy, 0, 5000 << 10, {});
  CHECK(none.fraction(Ticks{5000} << 10) == kSustainedLoad);
  RecentLoad load(Ticks{1000} << 10);
  const auto at = [](int64_t us) { return Ticks{us} << 10; };
  CHECK(load.fraction(at(0)) == 0);
  load.add(heavy, at(100), at(300), {});
  CHECK(load.fraction(at(300)) == 200);
  CHECK(load.fraction(at(200)) == 100);
  CHECK(load.fraction(at(1200)) == 100);
  load.add(heavy, at(1300), at(1500), {});
  CHECK(load.fraction(at(1500)) == 200);
  CHECK(load.fraction(at(2600)) == 0);
  load.move_base(at(1000));
  CHECK(load.fraction(at(500)) == 200);
  // Few tokens, or decodes alone, are no load.
  StepShape light = heavy;
  light.tokens = 100;
  load.add(light, at(500), at(900), {});
  heavy.chunks = {};
  load.add(heavy, at(900), at(1000), {});
  CHECK(load.fraction(at(1000)) == 200);
}

TEST_CASE("recent load: waits for pages do not count") {
  const ChunkShape chunk{512, 0, 0};
  StepShape heavy;
  heavy.tokens = 512, heavy.chunks = {&chunk, 1};
  const auto at = [](int64_t us) { return Ticks{us} << 10; };
  const auto fraction = [&](int64_t waited) {
    RecentLoad load(at(1000));
    load.add(heavy, at(0), at(500), {.waited = at(waited)});
    return load.fraction(at(500));
  };
  CHECK(fraction(0) == 500);
  CHECK(fraction(200) == 300);
  CHECK(fraction(600) == 0);  // a wait that other steps share
}

TEST_CASE("measured device: a written device reads back unchanged") {
  MeasuredDevice written = device();
  written.driver = "1.2", written.date = "2026-11-21", written.page_tokens = 16;
  written.figures = {{"a figure", "us", 1.5, 1, 2}};
  written.held_out = {{"a step", 100, 101}};
  const std::string text = measured_device_textproto(written);
  const auto read = parse_measured_device(text, "x");
  REQUIRE_MESSAGE(read, (read ? "" : read.error().text()));
  CHECK(measured_device_textproto(*read) == text);
  CHECK(read->gpu == written.gpu);
  CHECK(read->figure("a figure")->p90 == 2);
  CHECK(read->figure("none") == nullptr);
  CHECK(read->held_out.at(0).error() == doctest::Approx(0.01));
  CHECK(model(*read)->step(decodes(1, 1000, 100)).device ==
        model(device())->step(decodes(1, 1000, 100)).device);
}

TEST_CASE("measured device: errors are named") {
  const struct {
    const char* text;
    const char* message;
  } rows[] = {
      {"", "sm_count is 0"},
      {"sm_count: 4 table { operation: \"a\" }", "is empty"},
      {"sm_count: 4 table { operation: \"a\" rows: [1, 2] us: [1] us_p10: [1] us_p90: [1] }",
       "has 2 rows, 0 contexts and 1, 1, 1 times"},
      {"sm_count: 4 table { operation: \"a\" rows: [2, 1] us: [1, 1] us_p10: [1, 1] us_p90: [1, 1] }",
       "does not ascend"},
      {"sm_count: 4 table { operation: \"a\" rows: [1] us: [-1] us_p10: [-1] us_p90: [1] }", "is -1 us"},
      {"sm_count: 4 table { operation: \"a\" rows: [1] us: [nan] us_p10: [1] us_p90: [1] }", "0 or more"},
      {"sm_count: 4 figure { name: \"f\" value: inf }", "figure f is inf"},
      {"sm_count: 4 held_out { step: \"s\" }", "held_out s"},
      {"sm_count: 4 table { operation: \"a\" shape: \"b\" rows: 1 us: 1 us_p10: 1 us_p90: 1 }"
       "table { operation: \"a\" shape: \"b\" rows: 1 us: 1 us_p10: 1 us_p90: 1 }",
       "is there twice"},
  };
  for (const auto& row : rows) {
    const auto read = parse_measured_device(row.text, "file");
    REQUIRE(!read);
    CHECK_MESSAGE(read.error().text().find(row.message) != std::string::npos, read.error().text());
  }
}

TEST_CASE("measured cost: a model without measured shapes is refused by name") {
  LlmSpec other = tiny();
  other.name = "other", other.intermediate = 256;
  const auto made = MeasuredCost::make(device(), other, {}, "here");
  REQUIRE(!made);
  CHECK(made.error().text() ==
        "here: gate up of 512x64 was not measured, which other needs (it was measured for tiny); kvtwin "
        "calibrate device --model=other; or leave the profile out to use the roofline");
}

}  // namespace kvtwin
