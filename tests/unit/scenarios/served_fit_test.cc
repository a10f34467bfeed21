#include "scenarios/validate/served_fit.h"

#include <doctest/doctest.h>

#include <vector>

#include "models/cost_tables/served_time.h"

namespace kvtwin {
namespace {

double figure(const MeasuredDevice& device, Served what) {
  const MeasuredFigure* const found = device.figure(figure_of(what));
  return found == nullptr ? 1e9 : found->value;
}

}  // namespace

TEST_CASE("served steps: the offset of each kind from its tables, without outliers") {
  std::vector<PricedStep> steps;
  const auto add = [&](size_t count, double off, const PricedStep& like) {
    for (size_t i = 0; i < count; ++i) {
      steps.push_back(like);
      steps.back().predicted = 5000;
      // One in five is far off, on either side.
      steps.back().measured = 5000 + off + (i % 10 == 0 ? 3000 : i % 10 == 5 ? -900 : 0);
    }
  };
  PricedStep replay;
  replay.samples = 2;
  add(40, -120, replay);
  replay.samples = 9;
  add(30, -80, replay);
  replay.samples = 200;
  add(30, -10, replay);
  replay.behind_many = true;
  add(30, 15, replay);
  replay.calm_ms = 20;  // the clock has not recovered yet
  add(50, 400, replay);
  PricedStep first;
  first.graph = GraphUse::kCaptured;
  add(20, 1300, first);
  PricedStep chunk;
  chunk.chunks = true, chunk.padded = 256, chunk.graph = GraphUse::kNew;
  add(20, 210, chunk);
  chunk.padded = 320;
  add(60, 999, chunk);
  MeasuredDevice device;
  device.figures = {{figure_of(Served::kBehindFew4), "us", 5, 5, 5}, {"another", "us", 7, 7, 7}};
  forget_served(&device);
  learn_served(steps, &device);
  CHECK(figure(device, Served::kBehindFew2) == doctest::Approx(-120));
  CHECK(figure(device, Served::kBehindFew16) == doctest::Approx(-80));
  for (const Served what : {Served::kBehindFew4, Served::kBehindFew8, Served::kBehindFew64})
    CHECK(device.figure(figure_of(what)) == nullptr);
  CHECK(figure(device, Served::kBehindMany) == doctest::Approx(15));
  CHECK(figure(device, Served::kFewRows) == doctest::Approx(210));
  CHECK(device.figure("another") != nullptr);
}

}  // namespace kvtwin
