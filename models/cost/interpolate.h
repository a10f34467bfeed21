// Interpolation between measured points: linear, constant below the first point, along the last segment above
// the last point; with the evidence of each result.

#ifndef KVTWIN_MODELS_COST_INTERPOLATE_H_
#define KVTWIN_MODELS_COST_INTERPOLATE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "models/cost/cost_model.h"

namespace kvtwin {

// value = (1 - weight) * f(low) + weight * f(high); weight is 0 on a point and may exceed 1.
struct Bracket {
  uint32_t low = 0, high = 0;  // indices
  double weight = 0;
  Evidence evidence = Evidence::kMeasured;

  template <typename At>
  double blend(const At& at) const {
    const double a = at(low);
    return weight == 0 ? a : a + (at(high) - a) * weight;
  }
};

inline Evidence worse(Evidence a, Evidence b) { return a < b ? a : b; }

// One axis of a grid. Finds brackets in O(1) on axes that grow geometrically: the bit width of a value
// gives the segment or its neighbour.
class Axis {
 public:
  Axis() = default;
  // REQUIRES: `at` ascends and is not empty.
  explicit Axis(std::vector<uint32_t> at) : at_(at.begin(), at.end()) {
    for (uint32_t width = 0; width < first_.size(); ++width) {
      const double low = width == 0 ? 0 : static_cast<double>(uint64_t{1} << (width - 1));
      uint32_t i = 0;
      while (i + 2 < at_.size() && at_[i + 1] <= low) ++i;
      first_[width] = i;
    }
  }

  size_t size() const { return at_.size(); }
  double at(size_t i) const { return at_[i]; }

  Bracket bracket(double x) const {
    if (x <= at_.front() || at_.size() == 1) {
      return {0, 0, 0, x == at_.front() ? Evidence::kMeasured : Evidence::kExtrapolated};
    }
    const uint32_t last = static_cast<uint32_t>(at_.size()) - 1;
    const auto width = static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(std::min(x, 1e15))));
    uint32_t i = first_[width];
    while (i + 1 < last && at_[i + 1] <= x) ++i;
    if (x > at_[last]) return {last - 1, last, weight(i, x), Evidence::kExtrapolated};
    if (x == at_[i]) return {i, i, 0, Evidence::kMeasured};
    if (x == at_[i + 1]) return {i + 1, i + 1, 0, Evidence::kMeasured};
    return {i, i + 1, weight(i, x), Evidence::kInterpolated};
  }

 private:
  double weight(uint32_t i, double x) const { return (x - at_[i]) / (at_[i + 1] - at_[i]); }

  std::vector<double> at_;
  std::array<uint32_t, 65> first_{};  // segment of the smallest value of each bit width
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_INTERPOLATE_H_
