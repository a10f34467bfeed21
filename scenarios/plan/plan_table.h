// The table of a plan's candidates, the cost over the load, and the words they are written in.

#ifndef KVTWIN_SCENARIOS_PLAN_PLAN_TABLE_H_
#define KVTWIN_SCENARIOS_PLAN_PLAN_TABLE_H_

#include <string>
#include <vector>

#include "scenarios/plan/plan.h"

namespace kvtwin {

// The SLO of the whole run with the largest use. Null: there is none, or nothing ran.
const Slo* tightest(const std::vector<Slo>& slos, const LoadRun& run);
// "sessions" of "workload.sessions".
std::string last_word(const std::string& field);
// A figure of a run's result; 0 if it has none.
double figure_of(const LoadRun& run, const char* name);
std::string load_text(const PlanSpec& spec, double load);
// The largest load that the candidate holds: "21"; ">=216" if no higher one was asked; "<100" if the lowest
// one that was asked breaks.
std::string held_text(const PlanSpec& spec, const Candidate& candidate);
// "3.50 $/h (assumed)", "2.40 $/h (given)".
std::string price_text(const Candidate& candidate);
// "20 GPUs of 3 nodes"; "8 GPUs" if they are all those of one node.
std::string gpus_text(const Candidate& candidate);
// "7.6 s", "93.1 %", "1.52".
std::string value_text(const Slo& slo, double value);
// "7.6 s, 3.8x": the value at the requested load, and how many times the limit it is.
std::string achieved_text(const Slo& slo, const SloValue& value);

// Which limit breaks first, at which load, and why.
std::string broken_text(const PlanSpec& spec, const Candidate& candidate);
// A candidate that reuses fewer prefixes than another one at the requested load: by how much; "" if none
// does.
std::string reuse_text(const Plan& plan, const Candidate& candidate);

// Candidates that hold, cheapest first; then those that fail, nearest to the SLOs first; then the refused.
std::vector<size_t> ranked(const Plan& plan);

// The SLOs that `candidate` keeps at the requested load: --slo=... for each that it breaks, with the limit
// that it would keep. Empty if it keeps all, or cannot keep one at any limit.
std::vector<std::string> nearest_promise(const PlanSpec& spec, const Candidate& candidate);

// The cheapest candidate for each load: steps of ascending load and price.
struct CostStep {
  double up_to = 0;  // the largest load tried that it holds
  size_t candidate = 0;
};
std::vector<CostStep> cost_curve(const Plan& plan);

// The rows of the table, the header first. Varied fields are columns.
std::vector<std::vector<std::string>> plan_rows(const PlanSpec& spec, const Plan& plan);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PLAN_PLAN_TABLE_H_
