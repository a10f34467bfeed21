// Service level objectives (SLOs), in the syntax of --slo:
//
//   ttft_p99<2s        a percentile or the mean of a latency: ttft, ttft_from_queued, tpot, itl, e2e, session
//                      (first request ready to last request finished) or session_served (the same less tools
//                      and thinking), with _mean, _p50, _p90, _p95 or _p99; "<" or "<="; ns, us, ms, s, min
//                      or h
//   ttft<2s            without a percentile: a condition on each request, for goodput; ttft, tpot and e2e
//   goodput>=95%       at least this fraction of all requests meets every condition of the second form
//   requests_per_s>1.5    any other figure of a result by its name (kvtwin run --format=jsonl), with a
//                      plain number
//
// Requests with one output token meet every TPOT condition. Capitals and spaces are accepted:
// "TTFT p99 < 2 s".

#ifndef KVTWIN_SCENARIOS_PLAN_SLO_H_
#define KVTWIN_SCENARIOS_PLAN_SLO_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

struct Slo {
  enum class Kind { kFigure, kOfEachRequest, kGoodput };
  std::string text;  // as written, without spaces
  Kind kind{};
  std::string figure;  // of a result; for conditions on each request: ttft, tpot, e2e
  bool below = true;   // the figure must stay below the limit; false: above it
  double limit = 0;    // in the figure's own unit: ms for latencies, 0 to 1 for goodput
};

Result<Slo> parse_slo(std::string_view text);
// Parses all of them. Errors also: a goodput without conditions on each request, or such conditions without
// one.
Result<std::vector<Slo>> parse_slos(const std::vector<std::string>& texts);

// The value of one SLO in a run.
struct SloValue {
  double value = 0;
  // The used fraction of the limit: at 1 the SLO is just met, at 0 nothing is used. For goodput: the missed
  // fraction of requests relative to the allowed one.
  double use = 0;
  bool known = false;  // the run has the figure
  bool kept = false;
};

// `figures` by name; `requests_csv` as `kvtwin run` writes it (for goodput; empty otherwise). Latencies are
// multiplied by `slowdown`, to account for the error of the cost model.
std::vector<SloValue> judge(const std::vector<Slo>& slos, const std::map<std::string, double>& figures,
                            const std::string& requests_csv, double slowdown = 1);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PLAN_SLO_H_
