// What a service promises, as one writes it:
//
//   ttft_p99<2s        a percentile or the mean of a latency: ttft, ttft_from_queued, tpot, itl, e2e, session
//                      (first request ready to last request finished) or session_served (less tools and
//                      thinking), with _mean, _p50, _p90, _p95 or _p99; "<" or "<=", and ns, us, ms, s, min
//                      or h
//   ttft<2s            without a percentile: of each request, for goodput; ttft, tpot and e2e
//   goodput>=95%       at least so many of all requests keep every condition of the second form
//   requests_per_s>1.5    any other figure of a result by its name (kvtwin run --format=jsonl), with a
//                      plain number
//
// TPOT of requests with one token counts as kept.

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
  std::string text;  // as written
  Kind kind{};
  std::string figure;  // of a result; of each request: ttft, tpot, e2e
  bool below = true;   // the figure must stay below the limit; else above
  double limit = 0;    // in the figure's own unit: ms of latencies; goodput: 0 to 1
};

Result<Slo> parse_slo(std::string_view text);
// All of them; also: a goodput needs conditions of each request, and these a goodput.
Result<std::vector<Slo>> parse_slos(const std::vector<std::string>& texts);

// A run beside one promise.
struct SloValue {
  double value = 0;
  // How much of the limit is used: 1 is just kept, 0 is nothing at all. Goodput: missed share over the one
  // allowed.
  double use = 0;
  bool known = false;  // the run has the figure
  bool kept = false;
};

// Figures by name, and requests.csv as `kvtwin run` writes it (for goodput; may be empty without one).
// `slowdown` multiplies every latency, for cost models that may be off by so much.
std::vector<SloValue> judge(const std::vector<Slo>& slos, const std::map<std::string, double>& figures,
                            const std::string& requests_csv, double slowdown = 1);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PLAN_SLO_H_
