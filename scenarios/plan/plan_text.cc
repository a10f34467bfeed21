// A plan as text: the answer, and what limits it.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/plural.h"
#include "scenarios/output/sessions_in_flight.h"
#include "scenarios/plan/plan.h"
#include "scenarios/plan/plan_table.h"

namespace kvtwin {
namespace {

// ttft_p99 of "ttft_p99<2s".
std::string last_metric(const Slo& slo) { return slo.text.substr(0, slo.text.find_first_of("<>")); }

class Answer {
 public:
  Answer(const PlanSpec& spec, const Plan& plan) : spec_(spec), plan_(plan) {}

  std::string sentences() {
    plan_.best ? best(plan_.candidates[*plan_.best]) : nothing();
    cheaper();
    return out_;
  }

  std::string text() {
    sentences();
    table();
    costs();
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void print(fmt::format_string<Args...> pattern, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), pattern, std::forward<Args>(args)...);
  }

  void best(const Candidate& c) {
    const double held = c.held_all_seeds;
    // No load breaks it, so that its margin may be larger.
    const bool open = c.broken.load <= 0 && held >= c.held.load;
    const char* const most = held >= spec_.load.high ? ", the most that was asked" : "";
    print(
        "{} holds {} {} {}{} ({} needed, margin {}{:.0f} %) with {} {}: {}, {}, {:.3g} $ per million "
        "output tokens.\n",
        c.name, last_word(spec_.load.field), open ? "of at least" : "=", load_text(spec_, held),
        open ? most : "", load_text(spec_, spec_.need), open ? "at least " : "",
        100 * (held / spec_.need - 1), c.seeds_tried, plural(c.seeds_tried, "seed"), gpus_text(c),
        price_text(c), figure_of(c.at_need, "usd_per_million_output_tokens"));
    print("At {}:", load_text(spec_, spec_.need));
    const char* comma = "";
    for (size_t i = 0; i < spec_.slos.size(); ++i) {
      if (spec_.slos[i].kind == Slo::Kind::kOfEachRequest) continue;
      print("{} {} is {}, {:.0f} % of its limit", comma, last_metric(spec_.slos[i]),
            value_text(spec_.slos[i], c.at_need.values[i].value), 100 * c.at_need.values[i].use);
      comma = ",";
    }
    print(".\nBeyond: {}.", broken_text(spec_, c));
    const std::vector<Use> uses = uses_of(spec_.slos, c.held);
    const Slo* breaks = c.broken.ran ? tightest(spec_.slos, c.broken) : nullptr;
    const auto next = std::find_if(uses.begin(), uses.end(), [&](const Use& use) {
      return breaks == nullptr || use.name != breaks->text;
    });
    if (next != uses.end())
      print(" Next limit: {}, {:.0f} % used at {}.", next->name, 100 * next->use,
            load_text(spec_, c.held.load));
    out_ += '\n';
    same_runs(c);
    if (c.seeds_tried > 1 && !c.seeds_matter)
      print("All seeds gave the same run: this scenario draws nothing, so further seeds are no evidence.\n");
    trust(c);
    nodes(c);
    load(c);
  }

  void nodes(const Candidate& c) {
    if (!c.price_known || c.gpus_of_nodes <= c.gpus) return;
    print("The price is of the {} {} in use; all {} GPUs of the {} are {:.2f} $/h.\n", c.gpus,
          plural(c.gpus, "GPU"), c.gpus_of_nodes, c.nodes == 1 ? "node" : fmt::format("{} nodes", c.nodes),
          c.usd_per_hour_of_nodes);
  }

  // Notes a run whose load was mostly lower than the one that it was asked for.
  void load(const Candidate& c) {
    const std::string note = in_flight_note(figure_of(c.at_need, "sessions_in_flight"), c.population,
                                            figure_of(c.at_need, "sessions"), c.replicas);
    if (!note.empty()) print("Note: at {}, {}.\n", load_text(spec_, spec_.need), note);
  }

  // Reports a margin that ends because the load cannot grow further, not because an SLO breaks.
  void same_runs(const Candidate& c) {
    const double sessions = figure_of(c.held, "sessions");
    if (spec_.load.field == "replay.population") {
      if (c.broken.load == 0 && sessions < spec_.load.high)
        print(
            "The trace has {:.0f} sessions, too few for {} in flight: the margin beyond is not "
            "known "
            "(--set=replay.replicas=N adds sessions).\n",
            sessions, load_text(spec_, spec_.load.high));
      return;
    }
    if (c.held.load != c.at_need.load && c.held.same_as(c.at_need))
      print("But the runs at {} and {} are equal: no more of {} is used; the margin is not known.\n",
            load_text(spec_, spec_.need), load_text(spec_, c.held.load), last_word(spec_.load.field));
  }

  // To first order every latency grows with the time of steps.
  void trust(const Candidate& c) {
    double use = 0;
    for (const SloValue& value : c.at_need.values) use = std::max(use, value.use);
    const double slack = use > 0 ? 1 / use - 1 : 0;
    print(
        "Step times may be {:.0f} % off ({:.0f} % measured or interpolated, {:.0f} % roofline, {:.0f} % "
        "extrapolated); "
        "the answer holds up to {:.0f} %{}.\n",
        100 * c.model_error,
        100 * (figure_of(c.at_need, "cost_measured") + figure_of(c.at_need, "cost_interpolated")),
        100 * figure_of(c.at_need, "cost_roofline"), 100 * figure_of(c.at_need, "cost_extrapolated"),
        100 * slack, slack >= c.model_error ? "" : ": it is likely, not certain");
  }

  void nothing() {
    if (plan_.not_judged()) {
      print(
          "Not judged: no candidate has measured kernels; --allow-roofline judges them with the error of "
          "rooflines ({:.0f} to {:.0f} %).\n",
          100 * kErrorRoofline, 100 * kErrorUnmeasured);
      return;
    }
    const size_t unjudged = not_judged();
    print("No candidate{} holds {} = {}.\n", unjudged > 0 ? " that was judged" : "",
          last_word(spec_.load.field), load_text(spec_, spec_.need));
    const Candidate* most = nullptr;
    for (const Candidate& c : plan_.candidates) {
      if (c.refused.empty() && (most == nullptr || c.held.load > most->held.load)) most = &c;
    }
    if (most != nullptr && most->held.load <= 0)
      print("None holds even {}.\n", load_text(spec_, spec_.load.low));
    else if (most != nullptr)
      print("The highest load is {}, by {}; {}.\n", load_text(spec_, most->held.load), most->name,
            broken_text(spec_, *most));
    nearest();
    if (most != nullptr) load(*most);
  }

  size_t not_judged() const {
    return static_cast<size_t>(std::count_if(plan_.candidates.begin(), plan_.candidates.end(),
                                             [](const Candidate& c) { return c.not_judged; }));
  }

  // The candidate that misses least, and the SLOs that it would keep.
  void nearest() {
    for (const size_t i : ranked(plan_)) {
      const Candidate& c = plan_.candidates[i];
      if (!c.refused.empty()) break;
      const std::vector<std::string> promise = nearest_promise(spec_, c);
      if (promise.empty()) continue;
      print("The nearest promise at {}: {}, by {} ({}).\n", load_text(spec_, spec_.need),
            fmt::join(promise, " "), c.name, price_text(c));
      return;
    }
  }

  void cheaper() {
    const size_t end = plan_.best.value_or(plan_.candidates.size());
    size_t fail = 0;
    for (size_t i = 0; i < end; ++i) {
      const Candidate& c = plan_.candidates[i];
      if (!c.refused.empty()) continue;
      if (plan_.best && c.usd_per_hour >= plan_.candidates[*plan_.best].usd_per_hour) continue;
      if (c.at_need.kept) {
        print("{} ({}) holds with {} of {} seeds only.\n", c.name, price_text(c), c.seeds_held,
              c.seeds_tried);
      } else {
        ++fail;
      }
    }
    if (plan_.best && fail > 0)
      print("{} cheaper {} {}: see the table.\n", fail, plural(fail, "candidate"),
            fail == 1 ? "fails" : "fail");
    if (const size_t unjudged = not_judged(); unjudged > 0 && !plan_.not_judged())
      print("{} {} not judged, without measured kernels: --allow-roofline judges {}.\n", unjudged,
            unjudged == 1 ? "candidate was" : "candidates were", unjudged == 1 ? "it" : "them");
    out_ += '\n';
  }

  void table() {
    const std::vector<std::vector<std::string>> rows = plan_rows(spec_, plan_);
    std::vector<size_t> widths(rows[0].size());
    for (const auto& row : rows) {
      for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
    }
    for (const auto& row : rows) {
      for (size_t c = 0; c + 1 < row.size(); ++c) print("{:>{}}  ", row[c], widths[c]);
      print("{}\n", row.back());
    }
  }

  void costs() {
    const std::vector<CostStep> curve = cost_curve(plan_);
    if (curve.empty()) return;
    print("\n{} up to  cheapest\n", last_word(spec_.load.field));
    const auto width = static_cast<int>(last_word(spec_.load.field).size() + 6);
    for (const CostStep& step : curve) {
      const Candidate& c = plan_.candidates[step.candidate];
      print("{:>{}}  {}: {}\n", held_text(spec_, c), width, price_text(c), c.name);
    }
  }

  const PlanSpec& spec_;
  const Plan& plan_;
  std::string out_;
};

nlohmann::ordered_json json_of(const PlanSpec& spec, const Candidate& c) {
  nlohmann::ordered_json out;
  out["name"] = c.name;
  for (size_t a = 0; a < c.values.size(); ++a) out["choices"][spec.sweep.axes[a].field] = c.values[a];
  out["refused"] = c.refused;
  out["not_judged"] = c.not_judged;
  out["gpus"] = c.gpus;
  out["usd_per_hour"] = c.usd_per_hour;
  out["price_known"] = c.price_known;
  out["price_assumed"] = c.price_assumed;
  out["price_given"] = c.price_given;
  out["nodes"] = c.nodes;
  out["gpus_of_nodes"] = c.gpus_of_nodes;
  out["usd_per_hour_of_nodes"] = c.usd_per_hour_of_nodes;
  if (!c.refused.empty()) return out;
  out["holds"] = c.holds();
  out["up_to"] = c.held.load;
  out["up_to_text"] = held_text(spec, c);
  out["breaks_at"] = c.broken.load;
  out["breaks"] = broken_text(spec, c);
  out["usd_per_million_output_tokens"] = figure_of(c.at_need, "usd_per_million_output_tokens");
  out["seeds_held"] = c.seeds_held;
  out["seeds_tried"] = c.seeds_tried;
  if (c.loss) out["loss_percent"] = *c.loss;
  out["on_front"] = c.on_front;
  out["model_error"] = c.model_error;
  for (size_t i = 0; i < spec.slos.size(); ++i) {
    if (spec.slos[i].kind == Slo::Kind::kOfEachRequest) continue;
    out["slos"][spec.slos[i].text] = {{"value", c.at_need.values[i].value}, {"use", c.at_need.values[i].use}};
  }
  if (!c.holds()) out["nearest_promise"] = nearest_promise(spec, c);
  return out;
}

}  // namespace

bool Plan::not_judged() const {
  return !candidates.empty() && std::all_of(candidates.begin(), candidates.end(), [](const Candidate& c) {
    return !c.refused.empty();
  }) && std::any_of(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.not_judged; });
}

std::vector<Use> uses_of(const std::vector<Slo>& slos, const LoadRun& run) {
  std::vector<Use> uses;
  for (size_t i = 0; i < slos.size() && i < run.values.size(); ++i) {
    if (slos[i].kind != Slo::Kind::kOfEachRequest) uses.push_back({slos[i].text, run.values[i].use});
  }
  if (figure_of(run, "gpu_pages") > 0)
    uses.push_back({"KV pages", figure_of(run, "gpu_pages_held_mean") / figure_of(run, "gpu_pages")});
  uses.push_back({"GPU time", figure_of(run, "busy")});
  std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.use > b.use; });
  return uses;
}

std::string cause_of(const Slo& slo, const LoadRun& run) {
  const bool first = slo.figure.starts_with("ttft"),
             later = slo.figure.starts_with("tpot") || slo.figure.starts_with("itl");
  struct Part {
    const char* name;
    const char* words;
    bool of_first, of_later;
  };
  if (const double all = figure_of(run, "session_makespan_mean_ms");
      slo.figure.starts_with("session_makespan")) {
    // Sessions wait for their own tools and users, independent of the server.
    const double own = all > 0 ? 1 - figure_of(run, "session_served_mean_ms") / all : 0;
    if (own > 0.5)
      return fmt::format(
          "tools and think time of the sessions ({:.0f} % of that time; "
          "session_served excludes them)",
          100 * own);
  }
  constexpr std::array<Part, 6> kParts{
      {{"time_queue_s", "queueing", true, false},
       {"time_transfer_s", "copies of KV between memories", true, true},
       {"time_prefill_s", "prefill arithmetic", true, false},
       {"time_recompute_s", "prefill again after preemptions: KV memory", true, true},
       {"time_decode_s", "decode steps: reading weights and KV, concurrent prefill", false, true},
       {"time_host_s", "host time", true, true}}};
  const Part* most = nullptr;
  double all = 0;
  for (const Part& part : kParts) {
    if ((first && !part.of_first) || (later && !part.of_later)) continue;
    all += figure_of(run, part.name);
    if (most == nullptr || figure_of(run, part.name) > figure_of(run, most->name)) most = &part;
  }
  const double fraction = all > 0 ? 100 * figure_of(run, most->name) / all : 0;
  std::string words = most->words;
  if (words == "queueing") {
    const bool memory = figure_of(run, "preemptions") > 0 ||
                        figure_of(run, "gpu_pages_held_peak") >= 0.98 * figure_of(run, "gpu_pages");
    const bool prefill = figure_of(run, "time_prefill_s") > figure_of(run, "time_decode_s");
    words += memory    ? " for KV memory"
             : prefill ? " for GPU time, most of it prefill"
                       : " for GPU time, most of it decode";
  }
  return fmt::format("{} ({:.0f} % of that time)", words, fraction);
}

namespace {

nlohmann::ordered_json json_of(const PlanSpec& spec, const Plan& plan) {
  nlohmann::ordered_json out;
  out["load"] = spec.load.field;
  out["need"] = spec.need;
  out["not_judged"] = plan.not_judged();
  if (plan.best) {
    out["best"] = plan.candidates[*plan.best].name;
    const Candidate& best = plan.candidates[*plan.best];
    out["holds_up_to"] = best.held_all_seeds;
    out["holds_more"] = best.broken.load <= 0 && best.held_all_seeds >= best.held.load;
  }
  for (const Candidate& candidate : plan.candidates) {
    out["candidates"].push_back(json_of(spec, candidate));
    if (const std::string reuse = reuse_text(plan, candidate); !reuse.empty())
      out["candidates"].back()["reuse"] = reuse;
  }
  for (const CostStep& step : cost_curve(plan)) {
    const Candidate& c = plan.candidates[step.candidate];
    out["cost_curve"].push_back(
        {{"up_to", step.up_to}, {"usd_per_hour", c.usd_per_hour}, {"candidate", c.name}});
  }
  return out;
}

}  // namespace

std::string plan_file(const PlanSpec& spec, const Plan& plan, const std::string& command) {
  nlohmann::ordered_json out = json_of(spec, plan);
  out["command"] = command;
  out["scenario"] = spec.sweep.scenario;
  out["answer"] = nlohmann::json::array();
  std::istringstream sentences(Answer(spec, plan).sentences());
  for (std::string line; std::getline(sentences, line);) {
    if (!line.empty()) out["answer"].push_back(line);
  }
  out["table"] = plan_rows(spec, plan);
  if (plan.best) {
    for (const Use& use : uses_of(spec.slos, plan.candidates[*plan.best].at_need))
      out["uses"].push_back({{"limit", use.name}, {"use", use.use}});
  }
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string format_plan(const PlanSpec& spec, const Plan& plan, OutputFormat format) {
  if (format == OutputFormat::kTable) return Answer(spec, plan).text();
  return json_of(spec, plan)
             .dump(format == OutputFormat::kJson ? 2 : -1, ' ', false,
                   nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace kvtwin
