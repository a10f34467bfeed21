// What is the cheapest configuration that keeps what was promised at the load that is asked for, how much
// more would it take, and what breaks first?
//
// Candidates are a grid of scenario fields (hardware, counts, parallelism, policies, limits). Each is run at
// the load asked for; from there its capacity is found by bisection, on the assumption that a candidate which
// keeps the promises at one load keeps them at every lower one. All candidates are bisected at once, one run
// of each per round, so that processes are never idle. Runs are a sweep's points (sweep/sweep.h): in the same
// folder they are found again.

#ifndef KVTWIN_SCENARIOS_PLAN_PLAN_H_
#define KVTWIN_SCENARIOS_PLAN_PLAN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scenarios/plan/slo.h"
#include "scenarios/sweep/sweep.h"

namespace kvtwin {

// How far prices may be off, by what they rest on. models/README.md: interpolated tables 6 % on prefill
// steps, the H200's roofline 9 % on its kernels. Where the fractions of a roofline are another device's, and
// beyond tables, nobody has measured it: 30 % is assumed.
inline constexpr double kErrorMeasured = 0.03, kErrorInterpolated = 0.06, kErrorRoofline = 0.09,
                        kErrorUnmeasured = 0.3;

// The field that says how much there is to do.
struct LoadAxis {
  std::string field;
  double low = 0, high = 0;  // nothing outside is tried
  bool whole = false;
};
// FIELD=LOW..HIGH.
Result<LoadAxis> parse_load(std::string_view text);

// What a choice costs in quality, in percent, as the user knows it: "policies.precision=int4:0.4".
struct KnownLoss {
  std::string field, value;
  double percent = 0;
};
Result<KnownLoss> parse_loss(std::string_view text);
// From quality.csv of kvtwin evaluate: for each format that keeps every cell, how many percentage points
// fewer answers are right than with full KV, a mean over the tasks that both were asked. What drops cells is
// left out: its loss depends on budget and context, which are the evaluation's and not the plan's.
Result<std::vector<KnownLoss>> read_losses(const std::string& text, const std::string& path);

struct PlanSpec {
  SweepSpec sweep;  // scenario, sets, and the grid of candidates; no sampling
  LoadAxis load;
  double need = 0;
  std::vector<Slo> slos;
  std::vector<KnownLoss> losses;
  uint32_t seeds = 3;           // with which the answer must hold
  double resolution = 0.05;     // of capacities, relative
  bool allow_roofline = false;  // else candidates whose kernels nobody measured are refused
};

// One run. `values` are by promise.
struct LoadRun {
  double load = 0;
  bool ran = false, kept = false;
  std::string error, digest;
  std::vector<SloValue> values;
  std::map<std::string, double> figures;

  bool same_as(const LoadRun& other) const { return digest == other.digest && figures == other.figures; }
};

struct Candidate {
  SweepPoint values;        // by axis
  std::string name;         // "hardware.node=h200 engines.count=2"
  std::string refused;      // why it is none; empty: it was tried
  bool not_judged = false;  // it ran, and was refused because its step times were not measured
  uint32_t gpus = 0;
  double usd_per_hour = 0;
  bool price_known = false, price_assumed = false;
  std::optional<double> loss;  // percent, if all of its choices that have a known one say so
  // How much longer steps may really take, relative: by the evidence that its prices rest on.
  double model_error = 0;
  LoadRun at_need;
  LoadRun held;                              // the largest load tried that holds; load 0: none
  LoadRun broken;                            // the smallest that does not; load 0: none up to the axis' end
  uint32_t seeds_held = 0, seeds_tried = 0;  // at the load asked for
  bool seeds_matter = false;                 // runs of other seeds differed
  double held_all_seeds = 0;                 // with every seed; the best candidate only
  bool on_front = false;                     // price, latency and loss: no other is better in all

  bool holds() const { return refused.empty() && at_need.kept && seeds_held == seeds_tried; }
};

struct Plan {
  std::vector<Candidate> candidates;  // cheapest first
  std::optional<size_t> best;
  uint64_t runs = 0;  // that were made now

  // No candidate was judged: without --allow-roofline the question has no answer.
  bool not_judged() const;
};

struct PlanRun {
  std::string dir, program;
  uint32_t at_once = 1;
  Warn warn;
  std::function<void(uint64_t ran)> progress;
};
Result<Plan> make_plan(const PlanSpec& spec, const PlanRun& how);

// What a run is short of: promises, KV pages and GPU time by how much of each is used, the fullest first.
struct Use {
  std::string name;
  double use = 0;
};
std::vector<Use> uses_of(const std::vector<Slo>& slos, const LoadRun& run);
// Where time went that `slo` counts, in words: "queueing for KV memory".
std::string cause_of(const Slo& slo, const LoadRun& run);

// Text: the answer in sentences, then a table. json: one object.
std::string format_plan(const PlanSpec& spec, const Plan& plan, OutputFormat format);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PLAN_PLAN_H_
