#include "scenarios/validate/validation.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvtwin {
namespace {

ComparedFigure figure_of(std::string name, double value, double tolerance) {
  ComparedFigure out;
  out.name = std::move(name), out.unit.push_back('%');
  out.absolute = true;
  out.simulated = out.difference = value, out.tolerance = tolerance;
  out.verdict = value <= tolerance ? Verdict::kWithin : Verdict::kOutside;
  return out;
}

}  // namespace

ErrorStatistics statistics_of(std::vector<double> errors) {
  ErrorStatistics out;
  out.count = errors.size();
  if (errors.empty()) return out;
  for (double& error : errors) {
    out.mean += 100 * error / static_cast<double>(errors.size());
    error = 100 * std::abs(error);
  }
  std::sort(errors.begin(), errors.end());
  const auto rank = [&](double p) {
    const auto place = static_cast<size_t>(std::ceil(p * static_cast<double>(errors.size())));
    return errors[std::clamp<size_t>(place, 1, errors.size()) - 1];
  };
  out.median = rank(0.5), out.p95 = rank(0.95);
  return out;
}

bool ScenarioValidation::good() const {
  return std::all_of(replayed.begin(), replayed.end(), [](const ReplayedRun& run) { return run.same; }) &&
         std::none_of(figures.begin(), figures.end(),
                      [](const ComparedFigure& one) { return one.verdict == Verdict::kOutside; });
}

bool Validation::good() const {
  return std::all_of(scenarios.begin(), scenarios.end(),
                     [](const ScenarioValidation& one) { return one.good(); });
}

void judge(const std::vector<KnownDeviation>& known, ScenarioValidation* one) {
  std::vector<ComparedFigure> open = {figure_of("step time, median error", one->steps.median, 3),
                                      figure_of("step time, p95 error", one->steps.p95, 10)};
  if (one->copies.count > 0) {
    open.push_back(figure_of("copy time, median error", one->copies.median, 5));
    open.push_back(figure_of("copy time, p95 error", one->copies.p95, 15));
  }
  one->figures.insert(one->figures.begin(), open.begin(), open.end());
  for (ComparedFigure& figure : one->figures) {
    if (figure.verdict != Verdict::kOutside) continue;
    for (const KnownDeviation& deviation : known) {
      if (deviation.figure != figure.name) continue;
      if (deviation.scenario != "*" && deviation.scenario != one->name) continue;
      figure.verdict = Verdict::kKnown;
      figure.known = deviation.because;
    }
  }
}

}  // namespace kvtwin
