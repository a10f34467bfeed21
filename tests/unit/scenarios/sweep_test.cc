// A sweep's axes and points: the values of each axis, and their reproducibility.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "scenarios/sweep/axis.h"
#include "scenarios/sweep/halving.h"
#include "scenarios/sweep/points.h"

using namespace kvtwin;

namespace {

std::vector<std::string> values_of(const char* vary) {
  const Result<Axis> axis = parse_axis(vary);
  REQUIRE_MESSAGE(axis, axis.error().text());
  return axis->values;
}

using Values = std::vector<std::string>;

}  // namespace

TEST_CASE("sweep axis: lists, steps and ranges") {
  CHECK(values_of("a=1,2,5") == Values{"1", "2", "5"});
  CHECK(values_of("a=1..8*2") == Values{"1", "2", "4", "8"});
  CHECK(values_of("a=1..10*2") == Values{"1", "2", "4", "8"});
  CHECK(values_of("a=1..7+3") == Values{"1", "4", "7"});
  CHECK(values_of("a=0.1..0.5+0.1") == Values{"0.1", "0.2", "0.3", "0.4", "0.5"});
  CHECK(values_of("a=1e-3..1e-1*10") == Values{"0.001", "0.01", "0.1"});
  CHECK(values_of("a=-2..2+2") == Values{"-2", "0", "2"});
  CHECK(values_of("trace.path=../a.kvtrace") == Values{"../a.kvtrace"});
  CHECK(values_of("trace.path=a..b,c") == Values{"a..b", "c"});
  CHECK(values_of("policies.retrieval=freekv") == Values{"freekv"});
  const Result<Axis> range = parse_axis("a=1..8");
  REQUIRE(range);
  CHECK(range->sampled());
  CHECK(range->at(0) == "1");
  CHECK(range->at(0.999999) == "8");
  const Result<Axis> scale = parse_axis("a=0.01..100*");
  REQUIRE(scale);
  CHECK(scale->at(0.5) == "1");
}

TEST_CASE("sweep points: a grid has every combination once, the last axis fastest") {
  const std::vector<Axis> axes = {*parse_axis("a=1,2"), *parse_axis("b=x,y,z")};
  const auto points = sweep_points(axes, {});
  REQUIRE(points);
  CHECK(*points ==
        std::vector<SweepPoint>{{"1", "x"}, {"1", "y"}, {"1", "z"}, {"2", "x"}, {"2", "y"}, {"2", "z"}});
  CHECK(!sweep_points({*parse_axis("a=1..8")}, {}));
  const std::vector<Axis> large(3, *parse_axis("a=1..1000+1"));
  CHECK(!sweep_points(large, {}));
}

TEST_CASE("sweep points: samples repeat, grow without changing, and cover their axes") {
  const std::vector<Axis> axes = {*parse_axis("a=0..15"), *parse_axis("b=p,q")};
  for (const Sampler sampler : {Sampler::kRandom, Sampler::kSobol}) {
    CAPTURE(static_cast<int>(sampler));
    const auto few = sweep_points(axes, {sampler, 16, 7}), many = sweep_points(axes, {sampler, 256, 7});
    REQUIRE(few);
    REQUIRE(many);
    CHECK(std::equal(few->begin(), few->end(), many->begin()));
    CHECK(*many == *sweep_points(axes, {sampler, 256, 7}));
    CHECK(*many != *sweep_points(axes, {sampler, 256, 8}));
    CHECK(std::set<SweepPoint>(many->begin(), many->end()).size() == 32);
  }
  // A Sobol sequence gives each sixteenth of the first axis one of 16 points. The shift moves the borders,
  // so none may get more than two.
  const auto sobol = sweep_points(axes, {Sampler::kSobol, 16, 3});
  std::map<std::string, int> hits;
  for (const SweepPoint& point : *sobol) CHECK(++hits[point[0]] <= 2);
  CHECK(hits.size() >= 12);
  CHECK(!sweep_points(axes, {Sampler::kSobol, 0, 1}));
}

TEST_CASE("sweep shards: they are disjoint and cover all points") {
  for (size_t point = 0; point < 50; ++point) {
    int owners = 0;
    for (uint32_t i = 0; i < 4; ++i) owners += Shard{i, 4}.has(point) ? 1 : 0;
    CHECK(owners == 1);
  }
  CHECK(parse_shard("3/4")->index == 3);
  for (const char* problem : {"4/4", "1", "/4", "1/", "a/4", "1/0", "-1/4"}) CHECK(!parse_shard(problem));
}

TEST_CASE("sweep halving: the best third continues, ties by point, failed points never") {
  const Result<Halving> halving = parse_halving("ttft_p99_ms:min", "replay.sessions_max=5,20", 3);
  REQUIRE(halving);
  CHECK(halving->rungs == Values{"5", "20"});
  std::vector<SweepRow> rows(7);
  const char* values[] = {"5.5", "1.25", "9", "1.25", "null", "0.5", "2"};
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].state = i == 5 ? PointState::kFailed : PointState::kDone;
    rows[i].metrics = {{"other", "0"}, {"ttft_p99_ms", values[i]}};
  }
  CHECK(*better_points(*halving, rows) == std::vector<size_t>{1, 3, 6});
  CHECK(*better_points(*parse_halving("ttft_p99_ms:max", "a=1,2", 7), rows) == std::vector<size_t>{2});
  CHECK(!better_points(*parse_halving("nothing:max", "a=1,2", 2), rows));
  for (const char* problem : {"ttft_p99_ms", ":min", "ttft:best"}) CHECK(!parse_halving(problem, "a=1,2", 3));
  CHECK(!parse_halving("a:min", "a=1", 3));
  CHECK(!parse_halving("a:min", "a=1..8", 3));
  CHECK(!parse_halving("a:min", "a=1,2", 1));
}
