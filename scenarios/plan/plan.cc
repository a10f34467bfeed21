#include "scenarios/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>

#include "scenarios/app/compose.h"
#include "scenarios/plan/plan_price.h"

namespace kvtwin {
namespace {

// The fraction of step time that must be measured for prices to count as measured.
constexpr double kMeasuredEnough = 0.995;
constexpr uint32_t kStepsDownMax = 6;

struct LoadQuestion {
  size_t candidate = 0;
  double load = 0;
  uint32_t seed = 0;  // offset from the scenario's seed
};

std::string written(const LoadAxis& axis, double load) {
  return axis.whole ? fmt::format("{:.0f}", load) : fmt::format("{:.4g}", load);
}

// Makes runs as points of a sweep whose last two axes are load and seed.
class Runner {
 public:
  Runner(const PlanSpec& spec, const PlanRun& how, uint64_t first_seed)
      : spec_(spec), how_(how), sweep_(spec.sweep), first_seed_(first_seed) {
    sweep_.axes.push_back({.field = spec.load.field, .values = {}, .unit = {}});
    sweep_.axes.push_back({.field = "seed", .values = {}, .unit = {}});
  }

  Result<std::vector<LoadRun>> run(const std::vector<Candidate>& candidates,
                                   const std::vector<LoadQuestion>& questions) {
    if (questions.empty()) return std::vector<LoadRun>();
    std::vector<SweepPoint> points;
    for (const LoadQuestion& ask : questions) {
      SweepPoint point = candidates[ask.candidate].values;
      point.push_back(written(spec_.load, ask.load));
      point.push_back(std::to_string(first_seed_ + ask.seed));
      points.push_back(std::move(point));
    }
    Result<std::vector<SweepRow>> rows = plan_points(sweep_, points, how_.dir, how_.warn);
    if (!rows) return tl::unexpected<Error>(rows.error());
    begin_round(*rows);
    const SweepRun settings{{}, how_.at_once, how_.program};
    Result<void> ran = run_sweep(sweep_, how_.dir, settings, &*rows, [&](const SweepRow&) {
      ++progress_.runs;
      ++progress_.ended;
      if (how_.progress) how_.progress(progress_.runs);
      if (how_.status) how_.status(progress_);
    });
    if (!ran) return tl::unexpected<Error>(ran.error());
    std::vector<LoadRun> out;
    for (size_t i = 0; i < questions.size(); ++i) {
      const LoadQuestion& ask = questions[i];
      out.push_back(read((*rows)[i], candidates[ask.candidate], ask.load));
    }
    return out;
  }
  uint64_t runs() const { return progress_.runs; }
  uint64_t found() const { return progress_.found; }

 private:
  void begin_round(const std::vector<SweepRow>& rows) {
    progress_.of_round = progress_.ended = 0;
    ++progress_.round;
    for (const SweepRow& row : rows) {
      // A run of an earlier round of this plan is asked for again, and was not found.
      const bool first = !row.key.empty() && seen_.insert(row.key).second;
      if (first && row.state == PointState::kDone) ++progress_.found;
      if (first && row.state != PointState::kDone) ++progress_.of_round;
    }
    if (how_.status) how_.status(progress_);
  }

  LoadRun read(const SweepRow& row, const Candidate& candidate, double load) const {
    LoadRun out;
    out.load = load;
    out.ran = row.state == PointState::kDone;
    out.error = row.error;
    if (!out.ran) return out;
    for (const auto& [name, text] : row.metrics) {
      if (name == "decisions") out.digest = text;
      double value = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc{})
        out.figures[name] = value;
    }
    if (!spec_.prices.empty()) take_price(candidate, &out.figures);
    std::string requests;
    const bool needs_requests = std::any_of(spec_.slos.begin(), spec_.slos.end(),
                                            [](const Slo& slo) { return slo.kind == Slo::Kind::kGoodput; });
    if (needs_requests) {
      std::ostringstream text;
      text << std::ifstream(how_.dir + "/points/" + row.key + "/requests.csv").rdbuf();
      requests = text.str();
    }
    out.values = judge(spec_.slos, out.figures, requests);
    const auto wanting = [&](const char* name) {
      const auto found = out.figures.find(name);
      return found != out.figures.end() && found->second > 0;
    };
    // A rejected request, or one that is unfinished at the end, breaks the SLOs.
    out.kept = !wanting("requests_rejected") && !wanting("requests_open") &&
               std::all_of(out.values.begin(), out.values.end(), [](const SloValue& v) { return v.kept; });
    return out;
  }

  const PlanSpec& spec_;
  const PlanRun& how_;
  SweepSpec sweep_;
  const uint64_t first_seed_;
  std::set<std::string> seen_;  // keys of all runs that were asked for
  PlanProgress progress_;
};

Candidate make_candidate(const PlanSpec& spec, const SweepPoint& values) {
  Candidate out;
  out.values = values;
  std::vector<std::string> sets = spec.sweep.sets;
  for (size_t a = 0; a < values.size(); ++a) {
    sets.push_back(spec.sweep.axes[a].field + "=" + values[a]);
    out.name += (a > 0 ? " " : "") + sets.back();
    for (const KnownLoss& loss : spec.losses) {
      if (loss.field == spec.sweep.axes[a].field && loss.value == values[a])
        out.loss = out.loss.value_or(0) + loss.percent;
    }
  }
  if (out.name.empty()) out.name = "as it is";
  sets.push_back(fmt::format("{}={}", spec.load.field, written(spec.load, spec.need)));
  const tl::expected<Scenario, Errors> scenario = load_scenario(spec.sweep.scenario, sets);
  if (!scenario) {
    out.refused = scenario.error().front().text();
    return out;
  }
  const tl::expected<Composed, Errors> composed = compose_engines(*scenario);
  if (!composed) {
    out.refused = composed.error().front().text();
    out.node_names.push_back(scenario->values.hardware().node());
    return out;
  }
  price(*composed, spec.prices, &out);
  const v1::Replay& replay = scenario->values.replay();
  if (replay.arrivals() == "fixed_population") out.population = replay.population();
  out.replicas = replay.replicas();
  const auto assumed = [](const EngineKind& kind) {
    return kind.device.gemm_fraction.basis == Basis::kAssumed;
  };
  const bool foreign = std::any_of(composed->kinds.begin(), composed->kinds.end(), assumed);
  out.model_error = foreign ? kErrorUnmeasured : kErrorRoofline;  // of its rooflines, until it has run
  return out;
}

// Sets the error of a candidate's prices from the evidence of its run.
void weigh_evidence(const PlanSpec& spec, Candidate* candidate) {
  const auto fraction = [&](const char* name) {
    const auto found = candidate->at_need.figures.find(name);
    return found == candidate->at_need.figures.end() ? 0.0 : found->second;
  };
  const double measured = fraction("cost_measured"), interpolated = fraction("cost_interpolated");
  if (measured + interpolated < kMeasuredEnough && !spec.allow_roofline) {
    candidate->not_judged = true;
    candidate->refused = fmt::format(
        "{:.0f} % of its step time is not measured; give tables (cost.profile), or "
        "--allow-roofline",
        100 * (1 - measured - interpolated));
  }
  candidate->model_error = kErrorMeasured * measured + kErrorInterpolated * interpolated +
                           candidate->model_error * fraction("cost_roofline") +
                           kErrorUnmeasured * fraction("cost_extrapolated");
}

// The load is limited to the trace's number of sessions.
double largest_load(const PlanSpec& spec, const Candidate& candidate) {
  const auto sessions = candidate.at_need.figures.find("sessions");
  const bool bounded = spec.load.field == "replay.population" && sessions != candidate.at_need.figures.end();
  return bounded ? std::min(spec.load.high, sessions->second) : spec.load.high;
}

// Bisection of one candidate's load, one run at a time.
class Search {
 public:
  Search(const PlanSpec& spec, const Candidate& candidate)
      : axis_(spec.load), resolution_(spec.resolution), end_(largest_load(spec, candidate)) {
    (candidate.at_need.kept ? low_ : high_) = spec.need;
  }

  // The next load to try; nullopt when the capacity is known with the requested resolution.
  std::optional<double> next() const {
    if (!high_) return *low_ >= end_ ? std::nullopt : std::optional(std::min(end_, rounded(*low_ * 2)));
    if (!low_) {
      if (*high_ <= axis_.low) return std::nullopt;
      return std::max(axis_.low, rounded(*high_ / 2));
    }
    const double gap = *high_ - *low_;
    if (gap <= (axis_.whole ? std::max(1.0, resolution_ * *low_) : resolution_ * *low_)) return std::nullopt;
    const double middle = rounded((*low_ + *high_) / 2);
    if (middle <= *low_ || middle >= *high_) return std::nullopt;
    return middle;
  }
  void take(double load, bool kept) { (kept ? low_ : high_) = load; }

 private:
  double rounded(double load) const { return axis_.whole ? std::floor(load) : load; }
  const LoadAxis& axis_;
  const double resolution_, end_;
  std::optional<double> low_, high_;
};

void note_run(const LoadRun& run, Candidate* candidate) {
  if (run.kept && run.load >= candidate->held.load) candidate->held = run;
  if (!run.kept && (candidate->broken.load == 0 || run.load <= candidate->broken.load))
    candidate->broken = run;
}

double replicas_of(const PlanSpec& spec) {
  const tl::expected<Scenario, Errors> scenario = load_scenario(spec.sweep.scenario, spec.sweep.sets);
  return scenario ? scenario->values.replay().replicas() : 1;
}

Result<void> run_at_need(const PlanSpec& spec, Runner* runner, std::vector<Candidate>* candidates) {
  std::vector<LoadQuestion> questions;
  for (size_t i = 0; i < candidates->size(); ++i) {
    if ((*candidates)[i].refused.empty()) questions.push_back({i, spec.need, 0});
  }
  Result<std::vector<LoadRun>> runs = runner->run(*candidates, questions);
  if (!runs) return tl::unexpected<Error>(runs.error());
  for (size_t i = 0; i < questions.size(); ++i) {
    Candidate& candidate = (*candidates)[questions[i].candidate];
    candidate.at_need = (*runs)[i];
    if (!candidate.at_need.ran) {
      candidate.refused = candidate.at_need.error;
      continue;
    }
    for (size_t s = 0; s < spec.slos.size(); ++s) {
      if (candidate.at_need.values[s].known) continue;
      return make_error("--slo=" + spec.slos[s].text,
                        fmt::format("results have no \"{}\"", spec.slos[s].figure),
                        "kvtwin run --format=jsonl prints all figures");
    }
    candidate.seeds_tried = 1;
    candidate.seeds_held = candidate.at_need.kept;
    weigh_evidence(spec, &candidate);
    note_run(candidate.at_need, &candidate);
  }
  return {};
}

Result<void> find_capacities(const PlanSpec& spec, Runner* runner, std::vector<Candidate>* candidates) {
  std::vector<std::optional<Search>> searches(candidates->size());
  for (size_t i = 0; i < candidates->size(); ++i) {
    if ((*candidates)[i].refused.empty()) searches[i].emplace(spec, (*candidates)[i]);
  }
  for (;;) {
    std::vector<LoadQuestion> questions;
    for (size_t i = 0; i < searches.size(); ++i) {
      const std::optional<double> load = searches[i] ? searches[i]->next() : std::nullopt;
      if (load) questions.push_back({i, *load, 0});
    }
    if (questions.empty()) return {};
    const Result<std::vector<LoadRun>> runs = runner->run(*candidates, questions);
    if (!runs) return tl::unexpected<Error>(runs.error());
    for (size_t i = 0; i < questions.size(); ++i) {
      searches[questions[i].candidate]->take(questions[i].load, (*runs)[i].kept);
      note_run((*runs)[i], &(*candidates)[questions[i].candidate]);
    }
  }
}

// Fails for a load that no run reads. Where all runs of a candidate are equal, runs at both ends of the axis
// show whether the load is read at all.
Result<void> check_load_counts(const PlanSpec& spec, Runner* runner,
                               const std::vector<Candidate>& candidates) {
  const auto tried = std::find_if(candidates.begin(), candidates.end(),
                                  [](const Candidate& c) { return c.refused.empty(); });
  if (tried == candidates.end() || spec.load.low == spec.load.high) return {};
  const auto index = static_cast<size_t>(tried - candidates.begin());
  for (const LoadRun* run : {&tried->held, &tried->broken}) {
    if (run->ran && !run->same_as(tried->at_need)) return {};
  }
  for (const double load : {spec.load.low, spec.load.high}) {
    const Result<std::vector<LoadRun>> runs = runner->run(candidates, {{index, load, 0}});
    if (!runs) return tl::unexpected<Error>(runs.error());
    const LoadRun& end = runs->front();
    if (!end.ran || !end.same_as(tried->at_need)) return {};
  }
  return make_error(
      fmt::format("--load={}", spec.load.field),
      fmt::format("the runs at {} and {} are equal: nothing in this scenario depends on the load",
                  written(spec.load, spec.load.low), written(spec.load, spec.load.high)),
      "a load that the scenario reads, or a trace with more work (replay.replicas)");
}

// Fails if the requested population exceeds the trace's sessions, which bound the number in flight.
Result<void> check_population(const PlanSpec& spec, const std::vector<Candidate>& candidates) {
  if (spec.load.field != "replay.population") return {};
  for (const Candidate& candidate : candidates) {
    if (!candidate.at_need.ran) continue;
    const auto sessions = candidate.at_need.figures.find("sessions");
    if (sessions == candidate.at_need.figures.end() || sessions->second >= spec.need) return {};
    return make_error(
        fmt::format("--need={}", written(spec.load, spec.need)),
        fmt::format("the trace has {:.0f} sessions, so {} are never in flight", sessions->second,
                    written(spec.load, spec.need)),
        fmt::format("--set=replay.replicas={:.0f}, or a trace with more sessions",
                    std::ceil(spec.need / std::max(sessions->second, 1.0) * replicas_of(spec))));
  }
  return {};
}

struct Seeds {
  uint32_t held = 0, tried = 0;
  bool differ = false;  // from each other
  bool all() const { return held == tried; }
};

// Runs with the other seeds than the first.
Result<Seeds> run_seeds(const PlanSpec& spec, Runner* runner, const std::vector<Candidate>& candidates,
                        size_t candidate, double load) {
  std::vector<LoadQuestion> questions;
  for (uint32_t seed = 1; seed < spec.seeds; ++seed) questions.push_back({candidate, load, seed});
  const Result<std::vector<LoadRun>> runs = runner->run(candidates, questions);
  if (!runs) return tl::unexpected<Error>(runs.error());
  Seeds seeds{.tried = static_cast<uint32_t>(questions.size())};
  for (const LoadRun& run : *runs) {
    seeds.held += run.kept;
    const LoadRun& first = candidates[candidate].at_need;
    seeds.differ = seeds.differ ||
                   (load == first.load && run.ran && run.values.front().value != first.values.front().value);
  }
  return seeds;
}

// Cheapest first; of equal prices the one that holds the most load.
void sort_by_price(std::vector<Candidate>* candidates) {
  std::stable_sort(candidates->begin(), candidates->end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(!a.refused.empty(), !a.price_known, a.usd_per_hour, -a.held.load, a.gpus) <
           std::tuple(!b.refused.empty(), !b.price_known, b.usd_per_hour, -b.held.load, b.gpus);
  });
}

// Finds the cheapest candidate that holds with every seed, and the load up to which it does.
Result<void> choose(const PlanSpec& spec, Runner* runner, Plan* plan) {
  std::vector<Candidate>& all = plan->candidates;
  for (size_t i = 0; i < all.size() && !plan->best; ++i) {
    if (!all[i].refused.empty() || !all[i].at_need.kept) continue;
    const Result<Seeds> seeds = run_seeds(spec, runner, all, i, spec.need);
    if (!seeds) return tl::unexpected<Error>(seeds.error());
    all[i].seeds_tried = spec.seeds;
    all[i].seeds_held = seeds->held + 1;
    all[i].seeds_matter = seeds->differ;
    if (seeds->all()) plan->best = i;
  }
  if (!plan->best) return {};
  Candidate& best = all[*plan->best];
  best.held_all_seeds = spec.need;
  double load = best.held.load;
  for (uint32_t step = 0; step < kStepsDownMax && load > spec.need; ++step) {
    const Result<Seeds> seeds = run_seeds(spec, runner, all, *plan->best, load);
    if (!seeds) return tl::unexpected<Error>(seeds.error());
    if (seeds->all()) {
      best.held_all_seeds = load;
      break;
    }
    load -= spec.resolution * best.held.load;
    if (spec.load.whole) load = std::floor(load);
  }
  return {};
}

// Marks the candidates that no other one beats in price, use of the first SLO at the requested load, and
// loss.
void mark_front(Plan* plan) {
  const auto of = [](const Candidate& c) {
    double use = 0;
    for (const SloValue& value : c.at_need.values) use = std::max(use, value.use);
    return std::tuple(c.usd_per_hour, use, c.loss.value_or(0));
  };
  for (Candidate& one : plan->candidates) {
    if (!one.holds()) continue;
    const auto [price_one, use_one, loss_one] = of(one);
    one.on_front = std::none_of(plan->candidates.begin(), plan->candidates.end(),
                                [&, p = price_one, u = use_one, l = loss_one](const Candidate& other) {
                                  if (!other.holds() || &other == &one) return false;
                                  const auto [price_other, use_other, loss_other] = of(other);
                                  const bool no_worse = price_other <= p && use_other <= u && loss_other <= l;
                                  return no_worse && (price_other < p || use_other < u || loss_other < l);
                                });
  }
}

Result<void> check_axes(const PlanSpec& spec) {
  for (const Axis& axis : spec.sweep.axes) {
    if (axis.sampled())
      return make_error("--vary=" + axis.field, "is a range to sample from",
                        "a plan takes lists and steps: 1..8*2");
    if (axis.field == spec.load.field || axis.field == "seed")
      return make_error("--vary=" + axis.field, "is the load, or the seed", "the plan varies these itself");
  }
  if (spec.need >= spec.load.low && spec.need <= spec.load.high) return {};
  return make_error(
      "--need", fmt::format("{} is outside the load's {} to {}", spec.need, spec.load.low, spec.load.high),
      "a load in this range, or a wider --load");
}

// Fails for a value that the scenario does not take, which is an error of the command line and not a refused
// candidate, and for a field that is not read.
Result<void> check_values(const PlanSpec& spec, const std::vector<SweepPoint>& points) {
  SweepSpec at_need = spec.sweep;
  at_need.sets.push_back(fmt::format("{}={}", spec.load.field, written(spec.load, spec.need)));
  if (Result<void> ok = check_fields_read(at_need, points); !ok) {
    Error problem = ok.error();
    if (problem.where == "--set=" + at_need.sets.back()) problem.where = "--load=" + spec.load.field;
    return tl::unexpected<Error>(problem);
  }
  for (const SweepPoint& point : points) {
    std::vector<std::string> sets = at_need.sets;
    for (size_t a = 0; a < point.size(); ++a) sets.push_back(spec.sweep.axes[a].field + "=" + point[a]);
    const tl::expected<Scenario, Errors> scenario = load_scenario(spec.sweep.scenario, sets);
    if (!scenario) return tl::unexpected<Error>(scenario.error().front());
  }
  return {};
}

}  // namespace

Result<Plan> make_plan(const PlanSpec& spec, const PlanRun& how) {
  if (const Result<void> ok = check_axes(spec); !ok) return tl::unexpected<Error>(ok.error());
  const Result<std::vector<SweepPoint>> points = sweep_points(spec.sweep.axes, {});
  if (!points) return tl::unexpected<Error>(points.error());
  if (const Result<void> ok = check_values(spec, *points); !ok) return tl::unexpected<Error>(ok.error());
  const tl::expected<Scenario, Errors> scenario = load_scenario(spec.sweep.scenario, spec.sweep.sets);
  const uint64_t seed = scenario ? scenario->values.seed() : 42;
  Plan plan;
  for (const SweepPoint& point : *points) plan.candidates.push_back(make_candidate(spec, point));
  // An error of the scenario itself appears in every candidate.
  if (std::none_of(plan.candidates.begin(), plan.candidates.end(),
                   [](const Candidate& c) { return c.refused.empty(); })) {
    return make_error(spec.sweep.scenario, "no candidate can run: " + plan.candidates.front().refused);
  }
  if (Result<void> ok = check_prices(spec.prices, plan.candidates); !ok)
    return tl::unexpected<Error>(ok.error());
  sort_by_price(&plan.candidates);
  Runner runner(spec, how, seed);
  std::vector<Candidate>* const all = &plan.candidates;
  if (Result<void> ok = run_at_need(spec, &runner, all); !ok) return tl::unexpected<Error>(ok.error());
  if (Result<void> ok = check_population(spec, *all); !ok) return tl::unexpected<Error>(ok.error());
  if (Result<void> ok = find_capacities(spec, &runner, all); !ok) return tl::unexpected<Error>(ok.error());
  if (Result<void> ok = check_load_counts(spec, &runner, *all); !ok) return tl::unexpected<Error>(ok.error());
  sort_by_price(all);
  if (Result<void> ok = choose(spec, &runner, &plan); !ok) return tl::unexpected<Error>(ok.error());
  mark_front(&plan);
  plan.runs = runner.runs();
  plan.found = runner.found();
  return plan;
}

}  // namespace kvtwin
