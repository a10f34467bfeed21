// Successive halving (Jamieson and Talwalkar 2016): all points run at a low fidelity, the better fraction of
// them at the next, and so on. A fidelity is a value of one field, for example the number of the trace's
// sessions.

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
  std::string field;               // a field of the scenario
  std::vector<std::string> rungs;  // its values, cheapest first
  uint32_t keep_one_of = 3;        // one of this many points continues, rounded up
};

// `halve` is METRIC:min or METRIC:max, `rungs` FIELD=VALUES of an axis.
Result<Halving> parse_halving(std::string_view halve, std::string_view rungs, uint32_t keep_one_of);

// The points (indices into rows) that continue, best first: finished ones that have the metric, ordered by
// its value, then by point. Errors: no finished row has the metric.
Result<std::vector<size_t>> better_points(const Halving& halving, const std::vector<SweepRow>& rows);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_HALVING_H_
