#include "scenarios/calibrate/calibrate_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "models/serving/server_cost.h"
#include "scenarios/calibrate/nelder_mead.h"

namespace kvtwin {
namespace {

// Coordinates of the search: the host times, and logarithms of the three factors.
enum Coordinate : size_t { kStep, kRequest, kWeights, kKv, kPrefill, kCoordinates };

constexpr double kFactorMax = 4;  // factors are 1/4 to 4
constexpr double kStepNsMax = 50e6, kRequestNsMax = 1e6;
constexpr double kStepNsTypical = 2e6, kRequestNsTypical = 20e3;
constexpr size_t kRunsMax = 160;  // of each of two searches
// The pull towards "nothing fitted": a factor of 2, or 5 typical host times, count as this much of the mean
// latency. It decides only where the log hardly does.
constexpr double kPull = 1e-3;

// To the digits that a log determines at best; the profile has these figures, and they are scored.
ServerTimes rounded(ServerTimes times) {
  const auto to = [](double unit, double value) { return std::round(value / unit) * unit; };
  times.host_step_ns = to(1000, times.host_step_ns), times.host_request_ns = to(100, times.host_request_ns);
  for (double* factor : {&times.weights, &times.kv, &times.prefill})
    *factor = std::round(*factor * 1e4) / 1e4;
  times.first_step_ns = times.first_step_ns / 1000 * 1000;
  return times;
}

ServerTimes times_at(const std::vector<double>& at) {
  return {.host_step_ns = at[kStep],
          .host_request_ns = at[kRequest],
          .weights = std::exp(at[kWeights]),
          .kv = std::exp(at[kKv]),
          .prefill = std::exp(at[kPrefill])};
}

double pull(const std::vector<double>& at) {
  double sum = 0;
  for (const size_t factor : {kWeights, kKv, kPrefill}) sum += std::pow(at[factor] / std::log(2), 2);
  sum += std::pow(at[kStep] / (5 * kStepNsTypical), 2) + std::pow(at[kRequest] / (5 * kRequestNsTypical), 2);
  return kPull * sum;
}

double ttft(const Request& one) { return one.first_token_s - one.queued_s; }
double latency(const Request& one) { return one.last_token_s - one.queued_s; }

ServerProfile::Range range_of(const std::vector<Request>& log, size_t begin, size_t end) {
  ServerProfile::Range out;
  out.requests = static_cast<uint32_t>(end - begin);
  std::map<double, int64_t> changes;
  for (size_t i = begin; i < end; ++i) {
    const Request& one = log[i];
    out.prompt_tokens_max = std::max(out.prompt_tokens_max, static_cast<uint32_t>(one.input_tokens));
    out.context_tokens_max =
        std::max(out.context_tokens_max, static_cast<uint32_t>(one.input_tokens + one.output_tokens));
  }
  // The others decode at the same time as this part.
  const double last =
      std::max_element(log.begin() + static_cast<int64_t>(begin), log.begin() + static_cast<int64_t>(end),
                       [](const Request& a, const Request& b) { return a.last_token_s < b.last_token_s; })
          ->last_token_s;
  for (const Request& one : log) {
    if (one.first_token_s > last) continue;
    ++changes[one.first_token_s], --changes[one.last_token_s];
  }
  int64_t running = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, running += change);
  out.running_max = static_cast<uint32_t>(most);
  return out;
}

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = static_cast<double>(values.size() - 1) * percent / 100;
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (rank - static_cast<double>(below));
}

RequestErrors errors_of(const std::vector<Request>& real, const std::vector<Request>& ours, size_t first,
                        double (*metric)(const Request&)) {
  std::vector<double> percent;
  for (size_t i = first; i < real.size(); ++i) {
    const double measured = metric(real[i]);
    if (measured > 0) percent.push_back(100 * std::abs(metric(ours[i]) - measured) / measured);
  }
  return {percentile(percent, 50), percentile(percent, 90)};
}

class Fit {
 public:
  explicit Fit(ServerCalibrationInput input) : input_(std::move(input)) {}

  Result<ServerCalibration> run();

 private:
  const std::vector<Request>& log() const { return input_.log; }
  // The requests of a run of the first `count` requests of the trace, or else of all.
  Result<std::vector<Request>> requests(const ServerTimes& times, size_t count);
  Result<void> check(const std::vector<Request>& ours) const;
  // The mean distance of first and last tokens of the calibration part, in seconds.
  double distance(const std::vector<Request>& ours) const;
  // The time that the first request waited for, beyond what these times explain.
  int64_t first_step_ns(const ServerTimes& times);
  // Complete times at a point of the search, and the distance there relative to the mean latency.
  std::pair<ServerTimes, double> at(const std::vector<double>& point);
  std::vector<double> search();
  Result<ServerScore> score(const ServerTimes& times);
  void weigh_figures(const std::vector<double>& best, ServerCalibration* out);

  ServerCalibrationInput input_;
  size_t simulated_ = 0;       // requests of the log that a run for the calibration part needs
  double mean_latency_s_ = 1;  // of the calibration part
  size_t runs_ = 0;
  std::string failed_;  // the first error of a run within the search
};

Result<std::vector<Request>> Fit::requests(const ServerTimes& times, size_t count) {
  ++runs_;
  Scenario scenario = input_.scenario;
  if (count < log().size()) scenario.values.mutable_replay()->set_requests_max(count);
  tl::expected<std::vector<Request>, Errors> made = simulated_requests(scenario, &times);
  if (!made) return tl::unexpected<Error>(made.error().front());
  return std::move(*made);
}

Result<void> Fit::check(const std::vector<Request>& ours) const {
  if (ours.size() != log().size())
    return make_error(
        input_.log_name,
        fmt::format("has {} requests, and the simulated run finished {}", log().size(), ours.size()),
        "the trace of the same requests, and a server that can hold them");
  for (size_t i = 0; i < ours.size(); ++i) {
    const Request &real = log()[i], &one = ours[i];
    if (real.input_tokens == one.input_tokens && real.output_tokens == one.output_tokens) continue;
    return make_error(
        input_.log_name,
        fmt::format("request {} in order of arrival has {} + {} tokens, and {} + {} in the trace", i,
                    real.input_tokens, real.output_tokens, one.input_tokens, one.output_tokens),
        "the trace of the same requests, with their arrivals");
  }
  return {};
}

double Fit::distance(const std::vector<Request>& ours) const {
  double sum = 0;
  for (size_t i = 0; i < input_.first; ++i) {
    sum += std::abs(ttft(ours[i]) - ttft(log()[i])) + std::abs(latency(ours[i]) - latency(log()[i]));
  }
  return sum / (2 * static_cast<double>(input_.first));
}

int64_t Fit::first_step_ns(const ServerTimes& times) {
  const Result<std::vector<Request>> alone = requests(times, 1);
  if (!alone || alone->empty()) return 0;
  return std::max<int64_t>(0, std::llround(1e9 * (ttft(log().front()) - ttft(alone->front()))));
}

std::pair<ServerTimes, double> Fit::at(const std::vector<double>& point) {
  ServerTimes times = times_at(point);
  times.first_step_ns = first_step_ns(times);
  const Result<std::vector<Request>> ours = requests(times, simulated_);
  if (!ours || ours->size() < input_.first) {
    if (failed_.empty()) failed_ = ours ? "requests do not finish" : ours.error().what;
    return {times, 1e9};
  }
  return {times, distance(*ours) / mean_latency_s_};
}

std::vector<double> Fit::search() {
  const double most = std::log(kFactorMax);
  std::vector<Bounded> bounds(kCoordinates);
  bounds[kStep] = {0, kStepNsTypical, 0, kStepNsMax};
  bounds[kRequest] = {0, kRequestNsTypical, 0, kRequestNsMax};
  for (const size_t factor : {kWeights, kKv, kPrefill}) bounds[factor] = {0, 0.15, -most, most};
  const auto function = [&](const std::vector<double>& point) { return at(point).second + pull(point); };
  std::vector<double> best;
  // A second simplex around the first one's result leaves a point at which the first one collapsed.
  for (const double size : {1.0, 0.4}) {
    for (size_t i = 0; i < best.size(); ++i) bounds[i].start = best[i], bounds[i].step *= size;
    best = minimise(bounds, kRunsMax, function).at;
  }
  return best;
}

Result<ServerScore> Fit::score(const ServerTimes& times) {
  const Result<std::vector<Request>> ours = requests(times, log().size());
  if (!ours) return tl::unexpected<Error>(ours.error());
  if (auto ok = check(*ours); !ok) return tl::unexpected<Error>(ok.error());
  Result<Comparison> compared = compare(log(), *ours, input_.first);
  if (!compared) return tl::unexpected<Error>(compared.error());
  ServerScore out{std::move(*compared), {}};
  const auto tpot = [](const Request& one) {
    return one.output_tokens > 1
               ? (one.last_token_s - one.first_token_s) / static_cast<double>(one.output_tokens - 1)
               : 0.0;
  };
  out.errors = {errors_of(log(), *ours, input_.first, ttft), errors_of(log(), *ours, input_.first, tpot),
                errors_of(log(), *ours, input_.first, latency)};
  return out;
}

void Fit::weigh_figures(const std::vector<double>& best, ServerCalibration* out) {
  const ServerTimes& times = out->profile.times;
  struct Change {
    const char* name;
    Coordinate of;
    std::string value;
    double to;
    std::string change;
  };
  const auto factor = [&](const char* name, Coordinate of, double value) {
    return Change{name, of, fmt::format("{:.3f}", value), best[of] + std::log(1.1), "x 1.1"};
  };
  const Change changes[] = {
      {"host time of a step", kStep, fmt::format("{:.3f} ms", times.host_step_ns / 1e6), best[kStep] + 1e6,
       "+ 1 ms"},
      {"host time per request of a step", kRequest, fmt::format("{:.1f} us", times.host_request_ns / 1e3),
       best[kRequest] + 20e3, "+ 20 us"},
      factor("factor of weights (decode step)", kWeights, times.weights),
      factor("factor of KV reads", kKv, times.kv),
      factor("factor of prefill", kPrefill, times.prefill)};
  size_t i = 0;
  for (const Change& change : changes) {
    std::vector<double> point = best;
    point[change.of] = change.to;
    out->figures[i++] = {change.name, change.value, change.change, 100 * at(point).second};
  }
  ServerTimes warm = times;
  warm.first_step_ns = 0;
  const Result<std::vector<Request>> ours = requests(warm, simulated_);
  out->figures[i] = {"additional time of the first step",
                     fmt::format("{:.1f} ms", static_cast<double>(times.first_step_ns) / 1e6), "= 0",
                     ours ? 100 * distance(*ours) / mean_latency_s_ : 0};
}

Result<ServerCalibration> Fit::run() {
  std::stable_sort(input_.log.begin(), input_.log.end(),
                   [](const Request& a, const Request& b) { return a.queued_s < b.queued_s; });
  if (log().size() <= input_.first || input_.first < 5)
    return make_error(
        input_.log_name,
        fmt::format("has {} requests, of which {} are to be fitted to", log().size(), input_.first),
        "at least 5, and at least one more to score");
  const ServerCalibrationInput& in = input_;
  double last_s = 0, sum = 0;
  for (size_t i = 0; i < in.first; ++i) {
    last_s = std::max(last_s, log()[i].last_token_s), sum += latency(log()[i]);
  }
  mean_latency_s_ = std::max(1e-9, sum / static_cast<double>(in.first));
  ServerCalibration out;
  Result<ServerScore> nothing = score({});  // checks that trace and log have the same requests
  if (!nothing) return tl::unexpected<Error>(nothing.error());
  out.nothing = std::move(*nothing);
  // Requests that arrive after the calibration part has ended do not matter to it.
  for (simulated_ = in.first; simulated_ < log().size() && log()[simulated_].queued_s <= last_s;)
    ++simulated_;
  out.before_percent = 100 * at(std::vector<double>(kCoordinates, 0)).second;
  const std::vector<double> best = search();
  const auto [times, distance] = at(best);
  if (!failed_.empty() && distance > 1e8) return make_error(in.log_name, failed_);
  out.profile.times = rounded(times);
  out.distance_percent = 100 * distance;
  out.fitted_to = in.first;
  weigh_figures(best, &out);
  Result<ServerScore> fitted = score(out.profile.times);
  if (!fitted) return tl::unexpected<Error>(fitted.error());
  out.fitted = std::move(*fitted);
  out.profile.seen = range_of(log(), 0, in.first);
  out.profile.seen.residual_percent = std::round(100 * out.distance_percent) / 100;
  out.rest = range_of(log(), in.first, log().size());
  out.requests_max = in.scenario.values.limits().requests_max();
  out.runs = runs_;
  return out;
}

}  // namespace

Result<ServerCalibration> calibrate_server(ServerCalibrationInput input) {
  return Fit(std::move(input)).run();
}

bool ServerCalibration::worse_than_nothing() const {
  constexpr double kNoise = 2;  // percentage points
  for (size_t m = 0; m < kComparedMetrics.size(); ++m) {
    if (fitted.errors[m].median > nothing.errors[m].median + kNoise) return true;
  }
  return false;
}

namespace {

// Figures of step times cannot make up for other settings, such as another number of running requests.
std::string warning_text(const ServerCalibration& c) {
  std::string out =
      "\nwarning: errors on the scored part are larger than with nothing fitted. The scenario may have other "
      "settings\n  than the server: model, GPU, KV tokens, limits.\n";
  const uint32_t most = std::max(c.profile.seen.running_max, c.rest.running_max);
  if (most < c.requests_max)
    out += fmt::format(
        "  The log never has more than {} requests at once, and limits.requests_max is {}: "
        "--set=limits.requests_max={}\n",
        most, c.requests_max, most);
  return out;
}

}  // namespace

std::string server_calibration_text(const ServerCalibration& c) {
  std::string out =
      fmt::format("fitted to the first {} requests, in {} simulated runs; scored on the other {}\n\n",
                  c.fitted_to, c.runs, c.rest.requests);
  out += fmt::format("  {:<36}{:>12}   {}\n", "figure", "fitted", "distance after a change of it");
  for (const FigureWeight& one : c.figures) {
    out += fmt::format("  {:<36}{:>12}   {:<8}{:>7.2f} %\n", one.name, one.value, one.change,
                       one.distance_percent);
  }
  out += fmt::format("  distance, of the mean latency       {:>10.2f} %   (nothing fitted: {:.2f} %)\n\n",
                     c.distance_percent, c.before_percent);
  out += fmt::format("  {:<26}{:>12}{:>16}{:>14}\n", "scored part", "real", "nothing fitted", "calibrated");
  for (size_t i = 0; i < c.fitted.comparison.rows.size(); ++i) {
    const ComparedRow &row = c.fitted.comparison.rows[i], &before = c.nothing.comparison.rows[i];
    if (row.statistic == "p95") continue;
    out += fmt::format("  {:<10}{:<16}{:>9.2f} ms{:>+14.2f} %{:>+12.2f} %\n", row.metric, row.statistic,
                       row.real_ms, before.difference_percent(), row.difference_percent());
  }
  out += "  error of one request, median (P90)\n";
  for (size_t m = 0; m < kComparedMetrics.size(); ++m) {
    const RequestErrors &before = c.nothing.errors[m], &after = c.fitted.errors[m];
    out += fmt::format("  {:<26}{:>28}{:>14}\n", kComparedMetrics[m],
                       fmt::format("{:.1f} ({:.1f}) %", before.median, before.p90),
                       fmt::format("{:.1f} ({:.1f}) %", after.median, after.p90));
  }
  const ServerProfile::Range& seen = c.profile.seen;
  out += fmt::format(
      "\n  trust: fitted at up to {} requests at once, prompts of up to {} and contexts of up to {} tokens\n",
      seen.running_max, seen.prompt_tokens_max, seen.context_tokens_max);
  const ServerProfile::Range& rest = c.rest;
  if (rest.running_max > seen.running_max || rest.context_tokens_max > seen.context_tokens_max ||
      rest.prompt_tokens_max > seen.prompt_tokens_max)
    out += fmt::format(
        "  the scored part has up to {} at once, prompts of up to {} and contexts of up to {}: "
        "extrapolated\n",
        rest.running_max, rest.prompt_tokens_max, rest.context_tokens_max);
  if (c.worse_than_nothing()) out += warning_text(c);
  return out;
}

}  // namespace kvtwin
