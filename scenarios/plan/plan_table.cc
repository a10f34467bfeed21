#include "scenarios/plan/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "engine/base/plural.h"

namespace kvtwin {
namespace {

// A candidate's reuse is worth a word from this difference on.
constexpr double kReuseWorse = 0.02;

bool is_latency(const Slo& slo) { return slo.figure.ends_with("_ms"); }

double worst_use(const Candidate& c) {
  double use = 0;
  for (const SloValue& value : c.at_need.values) use = std::max(use, value.use);
  return use;
}

std::string state_text(const Candidate& c) {
  if (c.not_judged) return "not judged";
  if (!c.refused.empty()) return "refused";
  return c.holds() ? "yes" : "no";
}

// A limit that `value` keeps, of two digits: upwards for upper limits, downwards for lower ones.
double rounded_limit(double value, bool upwards) {
  const double step = std::pow(10.0, std::floor(std::log10(value)) - 1);
  return (upwards ? std::ceil(value / step) : std::floor(value / step)) * step;
}

}  // namespace

const Slo* tightest(const std::vector<Slo>& slos, const LoadRun& run) {
  const Slo* found = nullptr;
  double most = -1;
  for (size_t i = 0; i < slos.size() && i < run.values.size(); ++i) {
    if (slos[i].kind == Slo::Kind::kOfEachRequest || run.values[i].use <= most) continue;
    most = run.values[i].use;
    found = &slos[i];
  }
  return found;
}

std::string last_word(const std::string& field) { return field.substr(field.rfind('.') + 1); }

double figure_of(const LoadRun& run, const char* name) {
  const auto found = run.figures.find(name);
  return found == run.figures.end() ? 0 : found->second;
}

std::string load_text(const PlanSpec& spec, double load) {
  return spec.load.whole ? fmt::format("{:.0f}", load) : fmt::format("{:.4g}", load);
}

std::string held_text(const PlanSpec& spec, const Candidate& c) {
  if (c.held.load <= 0) return "<" + load_text(spec, c.broken.load);
  return (c.broken.load <= 0 ? ">=" : "") + load_text(spec, c.held.load);
}

std::string price_text(const Candidate& c) {
  if (!c.price_known) return "no price known";
  const char* const basis = c.price_assumed ? " (assumed)" : c.price_given ? " (given)" : "";
  return fmt::format("{:.2f} $/h{}", c.usd_per_hour, basis);
}

std::string gpus_text(const Candidate& c) {
  std::string out = fmt::format("{} {}", c.gpus, plural(c.gpus, "GPU"));
  if (c.nodes > 1 || c.gpus_of_nodes > c.gpus)
    out += fmt::format(" of {} {}", c.nodes, plural(c.nodes, "node"));
  return out;
}

std::string value_text(const Slo& slo, double value) {
  if (slo.kind == Slo::Kind::kGoodput) return fmt::format("{:.1f} %", 100 * value);
  if (!is_latency(slo)) return fmt::format("{:.4g}", value);
  if (value < 1e3) return fmt::format("{:.3g} ms", value);
  return value < 600e3 ? fmt::format("{:.3g} s", value / 1e3) : fmt::format("{:.3g} min", value / 60e3);
}

std::string achieved_text(const Slo& slo, const SloValue& value) {
  const std::string text = value_text(slo, value.value);
  if (slo.kind == Slo::Kind::kGoodput || slo.limit <= 0) return text;
  const double times = value.value / slo.limit;
  return fmt::format("{}, {:.{}f}x", text, times, times < 10 ? 2 : times < 100 ? 1 : 0);
}

std::string broken_text(const PlanSpec& spec, const Candidate& c) {
  if (!c.refused.empty()) return c.refused;
  if (c.broken.load == 0)
    return fmt::format("nothing breaks up to {}, the most that was {}", load_text(spec, c.held.load),
                       c.held.load >= spec.load.high ? "asked" : "tried");
  // Nothing below was asked, so the load at which it breaks is not known.
  const std::string least = c.held.load > 0 ? "" : ", the least that was asked";
  if (!c.broken.ran) return fmt::format("fails at {}: {}", load_text(spec, c.broken.load), c.broken.error);
  if (figure_of(c.broken, "requests_rejected") > 0)
    return fmt::format("at {} {:.0f} requests are rejected", load_text(spec, c.broken.load),
                       figure_of(c.broken, "requests_rejected"));
  const Slo* slo = tightest(spec.slos, c.broken);
  if (slo == nullptr) return "";
  return fmt::format("{} breaks at {}{}: {}", slo->text, load_text(spec, c.broken.load), least,
                     cause_of(*slo, c.broken));
}

std::string reuse_text(const Plan& plan, const Candidate& c) {
  if (!c.at_need.ran) return "";
  const double own = figure_of(c.at_need, "prefix_reuse");
  const Candidate* best = nullptr;
  for (const Candidate& other : plan.candidates) {
    if (!other.at_need.ran) continue;
    if (best == nullptr ||
        figure_of(other.at_need, "prefix_reuse") > figure_of(best->at_need, "prefix_reuse"))
      best = &other;
  }
  const double most = best == nullptr ? 0 : figure_of(best->at_need, "prefix_reuse");
  if (most - own < kReuseWorse) return "";
  return fmt::format("prefix reuse {:.1f} %, {:.1f} % with {}", 100 * own, 100 * most, best->name);
}

std::vector<size_t> ranked(const Plan& plan) {
  std::vector<size_t> order(plan.candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    const Candidate& c = plan.candidates[i];
    const int group = c.holds() ? 0 : c.refused.empty() ? 1 : c.not_judged ? 2 : 3;
    return std::tuple(group, group == 0 ? c.usd_per_hour : group == 1 ? worst_use(c) : 0.0);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

std::vector<std::string> nearest_promise(const PlanSpec& spec, const Candidate& c) {
  std::vector<std::string> out;
  for (size_t i = 0; i < spec.slos.size() && i < c.at_need.values.size(); ++i) {
    const Slo& slo = spec.slos[i];
    const SloValue& value = c.at_need.values[i];
    if (slo.kind == Slo::Kind::kOfEachRequest || value.kept) continue;
    if (value.value <= 0) return {};
    std::string name = slo.text.substr(0, slo.text.find_first_of("<>"));
    Slo relaxed = slo;
    if (slo.kind == Slo::Kind::kGoodput) {
      relaxed.limit = std::floor(100 * value.value) / 100;
      if (relaxed.limit <= 0) return {};
      out.push_back(fmt::format("--slo='{}>={:.0f}%'", name, 100 * relaxed.limit));
      continue;
    }
    relaxed.limit = rounded_limit(value.value, slo.below);
    std::string limit = value_text(relaxed, relaxed.limit);
    std::erase(limit, ' ');
    out.push_back(fmt::format("--slo='{}{}{}'", name, slo.below ? "<=" : ">=", limit));
  }
  return out;
}

std::vector<CostStep> cost_curve(const Plan& plan) {
  std::vector<size_t> order;
  for (size_t i = 0; i < plan.candidates.size(); ++i) {
    const Candidate& c = plan.candidates[i];
    if (c.refused.empty() && c.price_known && c.held.load > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Candidate &one = plan.candidates[a], &other = plan.candidates[b];
    return std::tuple(one.usd_per_hour, -one.held.load) < std::tuple(other.usd_per_hour, -other.held.load);
  });
  std::vector<CostStep> out;
  for (const size_t i : order) {
    const double load = plan.candidates[i].held.load;
    if (out.empty() || load > out.back().up_to) out.push_back({load, i});
  }
  return out;
}

std::vector<std::vector<std::string>> plan_rows(const PlanSpec& spec, const Plan& plan) {
  const bool losses = std::any_of(plan.candidates.begin(), plan.candidates.end(),
                                  [](const Candidate& c) { return c.loss.has_value(); });
  std::vector<std::vector<std::string>> rows(1);
  for (const Axis& axis : spec.sweep.axes) rows[0].push_back(last_word(axis.field));
  for (const char* name : {"gpus", "$/h", "holds", "up to"}) rows[0].emplace_back(name);
  for (const Slo& slo : spec.slos) {
    if (slo.kind != Slo::Kind::kOfEachRequest)
      rows[0].push_back(fmt::format("{} at {}", slo.text, load_text(spec, spec.need)));
  }
  rows[0].emplace_back("$/M out");
  rows[0].emplace_back("off by");
  if (losses) rows[0].emplace_back("loss");
  rows[0].emplace_back("front");
  rows[0].emplace_back("what breaks");
  for (const size_t i : ranked(plan)) {
    const Candidate& c = plan.candidates[i];
    std::vector<std::string>& row = rows.emplace_back(c.values);
    row.push_back(fmt::format("{}", c.gpus));
    row.push_back(c.price_known ? fmt::format("{:.2f}", c.usd_per_hour) : "?");
    row.push_back(state_text(c));
    const bool judged = c.refused.empty();
    row.push_back(judged ? held_text(spec, c) : "-");
    for (size_t s = 0; s < spec.slos.size(); ++s) {
      if (spec.slos[s].kind == Slo::Kind::kOfEachRequest) continue;
      row.push_back(judged ? achieved_text(spec.slos[s], c.at_need.values[s]) : "-");
    }
    row.push_back(judged ? fmt::format("{:.3g}", figure_of(c.at_need, "usd_per_million_output_tokens"))
                         : "-");
    row.push_back(judged || c.not_judged ? fmt::format("{:.0f} %", 100 * c.model_error) : "-");
    if (losses) row.push_back(c.loss ? fmt::format("{:.1f} %", *c.loss) : "?");
    row.emplace_back(plan.best == i ? "best" : c.on_front ? "*" : "");
    const std::string reuse = reuse_text(plan, c);
    row.push_back(broken_text(spec, c) + (reuse.empty() ? "" : "; " + reuse));
  }
  return rows;
}

}  // namespace kvtwin
