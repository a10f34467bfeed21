// Axis is one field of a scenario that a sweep varies, and its values.
//
//   limits.requests_max=16,32,64       these values
//   limits.requests_max=16..256*2      16, 32, 64, 128, 256
//   replay.population=8..64+8          8, 16, ... 64
//   memory.gpu_pages=1000..9000        sampled uniformly from the range; whole if both ends are
//   replay.rate=0.01..10*              sampled uniformly on a logarithmic scale
//
// Steps are exact for whole numbers; others are rounded to 12 significant digits, so that a sweep's points
// are the same everywhere.

#ifndef KVTWIN_SCENARIOS_SWEEP_AXIS_H_
#define KVTWIN_SCENARIOS_SWEEP_AXIS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

struct Axis {
  std::string field;
  std::vector<std::string> values;  // empty: a range, to be sampled
  double low = 0, high = 0;
  bool logarithmic = false;
  bool whole = false;
  std::string unit;  // of a range, which its values end with

  bool sampled() const { return values.empty(); }
  // The value at `fraction` of the axis, 0 <= fraction < 1.
  std::string at(double fraction) const;
};

// The most values of one axis.
constexpr size_t kAxisValuesMax = 100'000;

// `vary` is FIELD=VALUES as above. Errors name --vary.
Result<Axis> parse_axis(std::string_view vary);
// The same for a list. Errors: a field is given twice.
Result<std::vector<Axis>> parse_axes(const std::vector<std::string>& vary);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_AXIS_H_
