#include "models/cost/range_end_cost.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <numeric>

namespace kvtwin {
namespace {

// Three operations a layer in 7 layers; the range is 10 % below and 30 % above.
class SpreadCost final : public CostModel {
 public:
  StepCost step(const StepShape& shape) override {
    StepCost cost;
    cost.device = 7 * (101 + 13 * Ticks{shape.tokens});
    cost.host = 5;
    cost.by_evidence = {cost.device / 3, cost.device / 7, 0, 0};
    cost.by_evidence[3] = cost.device - cost.by_evidence[0] - cost.by_evidence[1];
    cost.compression[2] = 70;
    return cost;
  }
  StepRange range(const StepShape& shape) override {
    const Ticks device = step(shape).device;
    return {device - device / 10, device + 3 * device / 10};
  }
  std::vector<StepPart> ops(const StepShape& shape) override {
    return {{"fixed", PartKind::kNorm, PartPlace::kLayer, 7, 101, Evidence::kMeasured},
            {"rows", PartKind::kGemm, PartPlace::kLayer, 7, 13 * Ticks{shape.tokens}, Evidence::kMeasured}};
  }
};

Ticks sum_of(const std::vector<StepPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), Ticks{0},
                         [](Ticks sum, const StepPart& part) { return sum + part.times * part.each; });
}

TEST_CASE("range end cost: a step is one end of its range, and its parts sum to it") {
  for (const RangeEnd end : {RangeEnd::kLow, RangeEnd::kHigh}) {
    RangeEndCost cost(end, std::make_unique<SpreadCost>());
    for (uint32_t tokens = 0; tokens < 50; ++tokens) {
      CAPTURE(tokens);
      StepShape shape;
      shape.tokens = tokens;
      const StepRange range = SpreadCost().range(shape);
      const StepCost step = cost.step(shape);
      CHECK(step.device == (end == RangeEnd::kLow ? range.low : range.high));
      CHECK(step.host == 5);
      CHECK(std::accumulate(step.by_evidence.begin(), step.by_evidence.end(), Ticks{0}) == step.device);
      CHECK(step.compression[2] == (end == RangeEnd::kLow ? 63 : 91));
      CHECK(sum_of(cost.ops(shape)) == step.device);
      CHECK(cost.range(shape).low == range.low);
      CHECK(cost.range(shape).high == range.high);
    }
  }
}

}  // namespace
}  // namespace kvtwin
