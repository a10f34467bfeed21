// Successive halving (Jamieson and Talwalkar 2016): all points at a low fidelity, the better fraction of them
// at the next, and so on. A fidelity is a value of one field: sessions of the trace, say.

#ifndef KVTWIN_SCENARIOS_SWEEP_HALVING_H_
#define KVTWIN_SCENARIOS_SWEEP_HALVING_H_

#include <string>
#include <string_view>
#include <vector>

#include "scenarios/sweep/sweep.h"

namespace kvtwin {

struct Halving {
  std::string metric;  // of a result: ttft_p99_ms
  bool largest = false;
  std::string field;               // of the scenario
  std::vector<std::string> rungs;  // its values, cheapest first
  uint32_t keep_one_of = 3;        // of so many points one goes on, rounded up
};

// `halve` is METRIC:min or METRIC:max, `rungs` FIELD=VALUES of an axis.
Result<Halving> parse_halving(std::string_view halve, std::string_view rungs, uint32_t keep_one_of);

// The points (indices into rows) that go on, best first: done ones that have the metric, by its value, then
// by point. Wrong: no done row has it.
Result<std::vector<size_t>> better_points(const Halving& halving, const std::vector<SweepRow>& rows);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_HALVING_H_
