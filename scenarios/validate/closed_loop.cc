// Figures of whole runs: simulated against real.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "scenarios/validate/validation.h"

namespace kvtwin {
namespace {

struct RunFigure {
  const char* name;
  const char* unit;
  double tolerance;  // percent of the real value, or `absolute` in the figure's unit
  bool absolute;
  std::function<double(const v1::RunResult&)> of;  // null: evicted pages
};

double percent_of(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

// Real engines do not time copies inside steps; add_exposed_transfers() derives them.
double commanded(const v1::RunResult& run, double value) { return run.has_retrieval() ? 0 : value; }

const std::vector<RunFigure>& figures() {
  using R = v1::RunResult;
  static const std::vector<RunFigure> kFigures = {
      {"throughput", "tokens/s", 3, false, [](const R& r) { return r.rates().output_tokens_per_s(); }},
      {"tpot mean", "ms", 3, false, [](const R& r) { return r.latencies().tpot().mean_ns() / 1e6; }},
      {"ttft mean", "ms", 6, false, [](const R& r) { return r.latencies().ttft().mean_ns() / 1e6; }},
      {"ttft p99", "ms", 12, false, [](const R& r) { return r.latencies().ttft().p99_ns() / 1e6; }},
      {"preemptions", "", 5, false,
       [](const R& r) { return static_cast<double>(r.requests().preemptions()); }},
      {"computed again", "tokens", 5, false,
       [](const R& r) { return static_cast<double>(r.reuse().recomputed_tokens()); }},
      {"prefix reuse", "tokens", 5, false,
       [](const R& r) { return static_cast<double>(r.reuse().first_admission_tokens()); }},
      {"evictions", "pages", 5, false, {}},
      {"peak pages", "% of pool", 2, true,
       [](const R& r) {
         return percent_of(static_cast<double>(r.pages().held_peak()), static_cast<double>(r.pages().gpu()));
       }},
      {"mean pages", "% of pool", 2, true,
       [](const R& r) { return percent_of(r.pages().held_mean(), static_cast<double>(r.pages().gpu())); }},
      {"tail fragmentation", "%", 2, true, [](const R& r) { return 100 * r.pages().tail_fragmentation(); }},
      {"group fragmentation", "%", 2, true, [](const R& r) { return 100 * r.pages().group_fragmentation(); }},
      {"reclaimed", "%", 2, true, [](const R& r) { return 100 * r.pages().reclaimed(); }},
      {"bytes to the gpu", "GB", 5, false,
       [](const R& r) { return commanded(r, static_cast<double>(r.transfers().bytes_in()) / 1e9); }},
      {"bytes to the host", "GB", 5, false,
       [](const R& r) { return commanded(r, static_cast<double>(r.transfers().bytes_out()) / 1e9); }},
      {"exposed transfers", "ms", 10, false,
       [](const R& r) { return commanded(r, static_cast<double>(r.transfers().exposed_ns()) / 1e6); }},
  };
  return kFigures;
}

double value_of(const RunFigure& figure, const Recording& run) {
  return figure.of ? figure.of(run.result) : static_cast<double>(run.pages_evicted);
}

// A figure that is zero on both sides is left out.
bool matters(const ComparedFigure& one) { return one.simulated != 0 || one.real_max != 0; }

}  // namespace

void compare(const std::vector<double>& real, ComparedFigure* one) {
  one->real = 0, one->real_min = HUGE_VAL, one->real_max = -HUGE_VAL;
  for (const double value : real) {
    one->real += value / static_cast<double>(real.size());
    one->real_min = std::min(one->real_min, value), one->real_max = std::max(one->real_max, value);
  }
  const double off = one->simulated - one->real;
  one->difference = one->absolute ? off : one->real > 0 ? 100 * off / one->real : HUGE_VAL;
  const bool between = one->simulated >= one->real_min && one->simulated <= one->real_max;
  one->verdict = std::abs(one->difference) <= one->tolerance ? Verdict::kWithin
                 : between                                   ? Verdict::kSpread
                                                             : Verdict::kOutside;
}

std::vector<ComparedFigure> compare_closed_loop(const Recording& simulated,
                                                const std::vector<Recording>& real) {
  std::vector<ComparedFigure> out;
  for (const RunFigure& figure : figures()) {
    ComparedFigure one;
    one.name = figure.name, one.unit = figure.unit, one.absolute = figure.absolute;
    one.tolerance = figure.tolerance, one.simulated = value_of(figure, simulated);
    std::vector<double> values;
    for (const Recording& recording : real) values.push_back(value_of(figure, recording));
    compare(values, &one);
    if (matters(one)) out.push_back(std::move(one));
  }
  return out;
}

namespace {

// "freekv_miss_0" for "freekv_miss_20"; "" for a name without misses.
std::string without_misses(const std::string& name) {
  constexpr char kMiss[] = "_miss_";
  const size_t at = name.find(kMiss);
  return at == std::string::npos ? "" : name.substr(0, at) + kMiss + "0";
}

}  // namespace

void add_exposed_transfers(std::vector<ScenarioValidation>* scenarios) {
  for (ScenarioValidation& one : *scenarios) {
    const std::string base = without_misses(one.name);
    const auto none = std::find_if(scenarios->begin(), scenarios->end(),
                                   [&](const ScenarioValidation& other) { return other.name == base; });
    if (base == one.name || none == scenarios->end() || none->real_ms.empty()) continue;
    double usual = 0;
    for (const double ms : none->real_ms) usual += ms / static_cast<double>(none->real_ms.size());
    ComparedFigure figure;
    figure.name = "exposed transfers", figure.unit = "ms", figure.tolerance = 10;
    figure.simulated = one.simulated_ms - none->simulated_ms;
    std::vector<double> real;
    for (const double ms : one.real_ms) real.push_back(ms - usual);
    compare(real, &figure);
    one.figures.push_back(std::move(figure));
  }
}

const char* name_of(Verdict verdict) {
  constexpr const char* kNames[] = {"within", "spread", "known", "outside"};
  return kNames[static_cast<size_t>(verdict)];
}

}  // namespace kvtwin
