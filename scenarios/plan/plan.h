// plan answers: which is the cheapest configuration that meets the SLOs at the requested load, how much more
// load does it take, and which limit breaks first?
//
// Candidates are a grid of scenario fields (hardware, counts, parallelism, policies, limits). Each is run at
// the requested load; from there its capacity is found by bisection. This assumes that a candidate which
// meets the SLOs at one load meets them at every lower one. All candidates are bisected concurrently, one run
// of each per round, to keep all processes busy. Runs are points of a sweep (sweep/sweep.h): a repeated plan
// in the same folder finds them again.

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

// The relative error of prices by their evidence. models/README.md: interpolated tables 6 % on prefill steps,
// the H200's roofline 9 % on its kernels. A roofline with another device's efficiencies, and extrapolation
// beyond tables, are unmeasured: 30 % is an assumption.
inline constexpr double kErrorMeasured = 0.03, kErrorInterpolated = 0.06, kErrorRoofline = 0.09,
                        kErrorUnmeasured = 0.3;

// The field that sets the load.
struct LoadAxis {
  std::string field;
  double low = 0, high = 0;  // the range of loads that are tried
  bool whole = false;
};
// Parses FIELD=LOW..HIGH.
Result<LoadAxis> parse_load(std::string_view text);

// The quality loss of a choice in percent, as the user states it: "policies.precision=int4:0.4".
struct KnownLoss {
  std::string field, value;
  double percent = 0;
};
Result<KnownLoss> parse_loss(std::string_view text);
// Reads losses from quality.csv of kvtwin evaluate: for each format that retains every KV entry, how many
// percentage points fewer answers are correct than with full KV, as a mean over the tasks that both ran.
// Methods that drop entries are left out: their loss depends on budget and context, which differ between
// evaluation and plan.
Result<std::vector<KnownLoss>> read_losses(const std::string& text, const std::string& path);

// The price of a GPU of a node, as the user states it: "h200-x8=2.40".
struct GivenPrice {
  std::string node;
  double usd_per_gpu_hour = 0;
};

struct PlanSpec {
  SweepSpec sweep;  // scenario, sets, and the grid of candidates; no sampling
  LoadAxis load;
  double need = 0;
  std::vector<Slo> slos;
  std::vector<KnownLoss> losses;
  std::vector<GivenPrice> prices;  // instead of the catalog's
  uint32_t seeds = 3;              // the number of seeds with which the answer must hold
  double resolution = 0.05;        // of capacities, relative
  bool allow_roofline = false;     // otherwise candidates without measured kernels are refused
};

// A plan's arguments, as on the command line.
struct PlanWords {
  std::string scenario, out = "out/plan", load, quality;
  std::vector<std::string> slos, vary, sets, losses, prices;
  double need = 0;
  uint32_t seeds = 3;
  bool allow_roofline = false;
};
Result<PlanSpec> plan_spec(const PlanWords& words);
// The command that makes the same plan.
std::string plan_command(const PlanWords& words);

// One run. `values` has one entry per SLO.
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
  std::string refused;      // why it is refused; empty: it was tried
  bool not_judged = false;  // it ran, but was refused because its step times are not measured
  uint32_t gpus = 0;        // in use
  // Nodes that hold them, and all GPUs of these nodes.
  uint32_t nodes = 0, gpus_of_nodes = 0;
  std::vector<std::string> node_names;
  double usd_per_hour = 0, usd_per_hour_of_nodes = 0;  // of the GPUs in use; of whole nodes
  bool price_known = false, price_assumed = false, price_given = false;
  double population = 0;       // replay.population at the requested load; 0: not of fixed_population
  double replicas = 1;         // replay.replicas
  std::optional<double> loss;  // percent; nullopt if no loss is known
  // The relative error of its step times, by the evidence of its prices.
  double model_error = 0;
  LoadRun at_need;
  LoadRun held;    // the largest load tried that holds; load 0: none
  LoadRun broken;  // the smallest load tried that does not; load 0: none up to the axis' end
  uint32_t seeds_held = 0, seeds_tried = 0;  // at the requested load
  bool seeds_matter = false;                 // runs with other seeds differed
  double held_all_seeds = 0;                 // load that holds with every seed; of the best candidate only
  bool on_front = false;                     // no other candidate is better in price, latency and loss

  bool holds() const { return refused.empty() && at_need.kept && seeds_held == seeds_tried; }
};

struct Plan {
  std::vector<Candidate> candidates;  // cheapest first
  std::optional<size_t> best;
  uint64_t runs = 0;   // number of runs made for this plan
  uint64_t found = 0;  // number of runs that its folder already had

  // No candidate was judged; --allow-roofline would judge them.
  bool not_judged() const;
};

// How far a plan is. Each round asks for one run of several candidates.
struct PlanProgress {
  uint64_t round = 0, of_round = 0, ended = 0;  // runs that this round makes, and those of them that ended
  uint64_t runs = 0, found = 0;                 // in all rounds
};

struct PlanRun {
  std::string dir, program;
  uint32_t at_once = 1;
  Warn warn;
  std::function<void(uint64_t ran)> progress;       // after each run
  std::function<void(const PlanProgress&)> status;  // at the start of a round, and after each run
};
Result<Plan> make_plan(const PlanSpec& spec, const PlanRun& how);

// The use of each limit of a run (SLOs, KV pages, GPU time), the most used first.
struct Use {
  std::string name;
  double use = 0;
};
std::vector<Use> uses_of(const std::vector<Slo>& slos, const LoadRun& run);
// The largest part of the time that `slo` counts, in words: "queueing for KV memory".
std::string cause_of(const Slo& slo, const LoadRun& run);

// plan.json, which reports draw: the fields of format_plan's JSON, the answer in sentences, the table, and
// the limits of the best candidate with their uses. `command` repeats the plan.
std::string plan_file(const PlanSpec& spec, const Plan& plan, const std::string& command);

// Text: the answer in sentences, then a table. json: one object.
std::string format_plan(const PlanSpec& spec, const Plan& plan, OutputFormat format);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PLAN_PLAN_H_
