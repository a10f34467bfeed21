#include "scenarios/sweep/halving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "scenarios/output/metric_names.h"

namespace kvtwin {
namespace {

std::optional<double> metric_of(const SweepRow& row, const std::string& name) {
  if (row.state != PointState::kDone) return std::nullopt;
  for (const auto& [known, value] : row.metrics) {
    if (known != name) continue;
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (end != value.c_str() && *end == '\0') return number;
  }
  return std::nullopt;
}

}  // namespace

Result<Halving> parse_halving(std::string_view halve, std::string_view rungs, uint32_t keep_one_of) {
  Halving out;
  const size_t colon = halve.rfind(':');
  const std::string_view way = colon == std::string_view::npos ? "" : halve.substr(colon + 1);
  if (colon == 0 || (way != "min" && way != "max"))
    return make_error("--halve", fmt::format("\"{}\" is not METRIC:min or METRIC:max", halve),
                      "as in ttft_p99_ms:min");
  Result<Axis> axis = parse_axis(rungs);
  if (!axis || axis->values.size() < 2)
    return make_error("--rungs", fmt::format("\"{}\" is not FIELD=VALUES with two values or more", rungs),
                      "cheapest first, as in --rungs=replay.sessions_max=20,100,692");
  if (keep_one_of < 2)
    return make_error("--keep-one-of", fmt::format("{} does not reduce the points", keep_one_of),
                      "2 or more");
  out.metric = metric_name(halve.substr(0, colon));
  if (out.metric.empty())
    return make_error("--halve", fmt::format("there is no metric \"{}\"", halve.substr(0, colon)),
                      metric_hint(halve.substr(0, colon)));
  out.largest = way == "max";
  out.field = axis->field;
  out.rungs = std::move(axis->values);
  out.keep_one_of = keep_one_of;
  return out;
}

Result<std::vector<size_t>> better_points(const Halving& halving, const std::vector<SweepRow>& rows) {
  std::vector<std::pair<double, size_t>> ranked;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (const auto value = metric_of(rows[i], halving.metric))
      ranked.emplace_back(halving.largest ? -*value : *value, i);
  }
  if (ranked.empty())
    return make_error("--halve", fmt::format("no point has a number for \"{}\"", halving.metric),
                      "these results lack it; failed points have no metrics");
  std::sort(ranked.begin(), ranked.end());
  const size_t keep = (rows.size() + halving.keep_one_of - 1) / halving.keep_one_of;
  std::vector<size_t> out;
  for (size_t i = 0; i < std::min(keep, ranked.size()); ++i) out.push_back(ranked[i].second);
  return out;
}

}  // namespace kvtwin
