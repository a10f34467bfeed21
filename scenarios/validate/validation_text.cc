// Validations as a table, as JSON, and compared with an earlier one.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "scenarios/validate/validation.h"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

// Smaller differences are rounding: figures are printed with two decimals.
constexpr double kWorseFactor = 1.1, kWorsePercent = 0.05;

std::string number(double value) {
  return std::abs(value) >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}", value);
}

std::string statistics_text(const ErrorStatistics& s) {
  return fmt::format("median {:.2f} %, p95 {:.2f} %, mean {:+.2f} %", s.median, s.p95, s.mean);
}

void add_scenario(const ScenarioValidation& one, std::string* out) {
  size_t same = 0;
  uint64_t steps = 0;
  for (const ReplayedRun& run : one.replayed) same += run.same ? 1 : 0, steps += run.steps;
  *out += fmt::format("{}\n  same decisions  {} of {} real runs, {} steps\n", one.name, same,
                      one.replayed.size(), steps);
  for (const ReplayedRun& run : one.replayed) {
    if (!run.same) *out += fmt::format("    {}: first difference: {}\n", run.repeat, run.difference);
  }
  *out += fmt::format("  open loop       {} steps: {}; all together {:+.2f} %\n", one.steps.count,
                      statistics_text(one.steps), one.total);
  if (one.decode_steps.count > 0)
    *out +=
        fmt::format("    decodes only  {}: {}\n", one.decode_steps.count, statistics_text(one.decode_steps));
  if (one.chunk_steps.count > 0)
    *out +=
        fmt::format("    with chunks   {}: {}\n", one.chunk_steps.count, statistics_text(one.chunk_steps));
  *out += fmt::format(
      "    {:.1f} % of steps within their range of +-{:.1f} %, {:.1f} % partly outside the tables\n",
      one.in_range, one.half_width, one.extrapolated);
  if (one.copies.count > 0)
    *out += fmt::format("    {} copies: {}\n", one.copies.count, statistics_text(one.copies));
  *out += fmt::format("  {:<26}{:>12}{:>12}{:>12}{:>12}{:>10}{:>8}  {}\n", "closed loop", "simulated", "real",
                      "least", "most", "differs", "limit", "");
  for (const ComparedFigure& f : one.figures) {
    if (f.real_max == 0 && f.absolute && f.simulated == f.difference) continue;  // a figure of the open loop
    *out += fmt::format("  {:<26}{:>12}{:>12}{:>12}{:>12}{:>9}{} {:>7}  {}\n",
                        f.name + (f.unit.empty() ? "" : ", " + f.unit), number(f.simulated), number(f.real),
                        number(f.real_min), number(f.real_max), fmt::format("{:+.2f}", f.difference),
                        f.absolute ? ' ' : '%', number(f.tolerance), name_of(f.verdict));
  }
  if (!one.parts_at.empty()) *out += "  the simulated run first diverges at " + one.parts_at;
  for (const ComparedFigure& f : one.figures) {
    if (f.verdict == Verdict::kOutside) *out += fmt::format("  outside: {}\n", f.name);
    if (f.verdict == Verdict::kKnown) *out += fmt::format("  known: {}, because {}\n", f.name, f.known);
  }
  *out += "\n";
}

Json statistics_json(const ErrorStatistics& s) {
  return {{"count", s.count}, {"median_percent", s.median}, {"p95_percent", s.p95}, {"mean_percent", s.mean}};
}

Json scenario_json(const ScenarioValidation& one) {
  Json out;
  out["scenario"] = one.name, out["good"] = one.good();
  for (const ReplayedRun& run : one.replayed)
    out["replayed"].push_back({{"repeat", run.repeat},
                               {"same", run.same},
                               {"steps", run.steps},
                               {"decisions", fmt::format("{:016x}", run.decisions)},
                               {"difference", run.difference}});
  out["open_loop"] = {{"steps", statistics_json(one.steps)},
                      {"decode_steps", statistics_json(one.decode_steps)},
                      {"chunk_steps", statistics_json(one.chunk_steps)},
                      {"copies", statistics_json(one.copies)},
                      {"total_percent", one.total},
                      {"in_range_percent", one.in_range},
                      {"half_width_percent", one.half_width},
                      {"extrapolated_percent", one.extrapolated}};
  out["parts_at"] = one.parts_at;
  out["figures"] = Json::array();
  for (const ComparedFigure& f : one.figures)
    out["figures"].push_back({{"name", f.name},
                              {"unit", f.unit},
                              {"simulated", f.simulated},
                              {"real", f.real},
                              {"real_min", f.real_min},
                              {"real_max", f.real_max},
                              {"absolute", f.absolute},
                              {"difference", std::isfinite(f.difference) ? Json(f.difference) : Json()},
                              {"tolerance", f.tolerance},
                              {"verdict", name_of(f.verdict)},
                              {"known", f.known}});
  return out;
}

struct FigurePair {
  std::string scenario, name;
  double value = 0;
};

// The absolute errors that must not grow, by name.
std::vector<FigurePair> guarded(const Json& validation) {
  std::vector<FigurePair> out;
  for (const Json& scenario : validation.at("scenarios")) {
    for (const Json& figure : scenario.at("figures")) {
      const Json& difference = figure.at("difference");
      const double value = difference.is_null() ? HUGE_VAL : std::abs(difference.get<double>());
      const std::string of = scenario.at("scenario").get<std::string>();
      out.push_back({of, of + ", " + figure.at("name").get<std::string>(), value});
    }
  }
  return out;
}

}  // namespace

std::string validation_table(const Validation& validation) {
  std::string out;
  for (const ScenarioValidation& one : validation.scenarios) add_scenario(one, &out);
  size_t good = 0;
  for (const ScenarioValidation& one : validation.scenarios) good += one.good() ? 1 : 0;
  out += fmt::format("{} of {} scenarios within their limits; open loop: {} steps, {}", good,
                     validation.scenarios.size(), validation.steps.count, statistics_text(validation.steps));
  if (validation.copies.count > 0)
    out += fmt::format("; {} copies, {}", validation.copies.count, statistics_text(validation.copies));
  return out + fmt::format("; {:.1f} % of steps within their range of +-{:.1f} %\n", validation.in_range,
                           validation.half_width);
}

std::string validation_json(const Validation& validation) {
  Json out;
  out["schema"] = 1;
  out["profile"] = validation.profile;
  out["good"] = validation.good();
  out["steps"] = statistics_json(validation.steps);
  out["copies"] = statistics_json(validation.copies);
  out["in_range_percent"] = validation.in_range, out["half_width_percent"] = validation.half_width;
  out["scenarios"] = Json::array();
  for (const ScenarioValidation& one : validation.scenarios) out["scenarios"].push_back(scenario_json(one));
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<std::string>> worse_than(const Validation& validation, const std::string& baseline,
                                            const std::string& where, bool part) {
  const auto validated = [&](const std::string& scenario) {
    return std::any_of(validation.scenarios.begin(), validation.scenarios.end(),
                       [&](const ScenarioValidation& one) { return one.name == scenario; });
  };
  std::vector<std::string> out;
  try {
    const std::vector<FigurePair> before = guarded(Json::parse(baseline));
    const std::vector<FigurePair> now = guarded(Json::parse(validation_json(validation)));
    for (const FigurePair& was : before) {
      if (part && !validated(was.scenario)) continue;
      const auto found =
          std::find_if(now.begin(), now.end(), [&](const FigurePair& one) { return one.name == was.name; });
      if (found == now.end())
        return make_error(where, fmt::format("has \"{}\", which is not validated now", was.name),
                          "validate the same scenarios, or some of them with --part");
      if (found->value > was.value * kWorseFactor + kWorsePercent)
        out.push_back(fmt::format("{}: error {:.2f}, baseline {:.2f}", was.name, found->value, was.value));
    }
  } catch (const nlohmann::json::exception& error) {
    return make_error(where, fmt::format("is no validation.json: {}", error.what()));
  }
  return out;
}

}  // namespace kvtwin
