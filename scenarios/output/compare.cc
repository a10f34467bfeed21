#include "scenarios/output/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/plural.h"
#include "models/files/textproto.h"
#include "scenarios/output/metric_names.h"

namespace kvtwin {
namespace {

// Reads the fields that vLLM 0.19 writes and ignores others.
Result<Request> parse_request(const nlohmann::json& line, const std::string& where) {
  Request out;
  if (!line.is_object()) return make_error(where, "is not a JSON object", "one request per line");
  const auto id = line.find("request_id");
  if (id != line.end() && id->is_string()) out.id = id->get<std::string>();
  const auto count = [&](const char* name, uint64_t* value) -> Result<void> {
    const auto found = line.find(name);
    if (found == line.end() || !found->is_number_unsigned()) {
      return make_error(where, fmt::format("{} is {}", name, found == line.end() ? "missing" : found->dump()),
                        "a number of tokens");
    }
    *value = found->get<uint64_t>();
    return {};
  };
  const auto time = [&](const char* name, double* value) -> Result<void> {
    const auto found = line.find(name);
    if (found == line.end() || !found->is_number()) {
      return make_error(where, fmt::format("{} is {}", name, found == line.end() ? "missing" : found->dump()),
                        "a time in seconds");
    }
    *value = found->get<double>();
    return {};
  };
  for (const Result<void>& ok :
       {count("input_toks", &out.input_tokens), count("output_toks", &out.output_tokens),
        time("queued_ts", &out.queued_s), time("first_token_ts", &out.first_token_s),
        time("last_token_ts", &out.last_token_s)}) {
    if (!ok) return tl::unexpected(ok.error());
  }
  if (const auto found = line.find("arrival_time");
      found != line.end() && found->is_number() && found->get<double>() <= out.queued_s)
    out.arrival_s = found->get<double>();
  if (out.first_token_s < out.queued_s || out.last_token_s < out.first_token_s) {
    return make_error(where, "its times are out of order", "queued_ts <= first_token_ts <= last_token_ts");
  }
  return out;
}

// numpy.percentile's default: linear between the neighbours of rank (n - 1) p / 100.
double interpolated(const std::vector<double>& sorted, double percent) {
  const double rank = static_cast<double>(sorted.size() - 1) * percent / 100;
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (rank - static_cast<double>(below));
}

std::array<double, kComparedStatistics.size()> statistics(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += value;
  return {sum / static_cast<double>(values.size()), interpolated(values, 50), interpolated(values, 90),
          interpolated(values, 95), interpolated(values, 99)};
}

std::array<std::vector<double>, kComparedMetrics.size()> metrics_ms(const std::vector<Request>& requests,
                                                                    bool from_arrival) {
  std::array<std::vector<double>, kComparedMetrics.size()> out;
  for (const Request& one : requests) {
    const double begin_s = from_arrival ? *one.arrival_s : one.queued_s;
    out[0].push_back(1e3 * (one.first_token_s - begin_s));
    if (one.output_tokens > 1) {
      out[1].push_back(1e3 * (one.last_token_s - one.first_token_s) /
                       static_cast<double>(one.output_tokens - 1));
    }
    out[2].push_back(1e3 * (one.last_token_s - begin_s));
  }
  return out;
}

// Sorts `ours` into the order of `real`, without what `real` lacks; false if it has not all of real's ids.
bool match_by_id(const std::vector<Request>& real, std::vector<Request>* ours) {
  std::map<std::string, const Request*> by_id;
  for (const Request& one : *ours) by_id.emplace(one.id, &one);
  if (by_id.size() != ours->size()) return false;
  std::vector<Request> ordered;
  for (const Request& one : real) {
    const auto found = by_id.find(one.id);
    if (one.id.empty() || found == by_id.end()) return false;
    ordered.push_back(*found->second);
  }
  *ours = std::move(ordered);
  return true;
}

bool all_have_arrivals(const std::vector<Request>& requests) {
  return std::all_of(requests.begin(), requests.end(),
                     [](const Request& one) { return one.arrival_s.has_value(); });
}

// What all requests of a pair must agree in.
Result<void> check_pairs(const std::vector<Request>& real, const std::vector<Request>& ours, bool by_id) {
  for (size_t i = 0; i < real.size(); ++i) {
    if (real[i].input_tokens == ours[i].input_tokens && real[i].output_tokens == ours[i].output_tokens)
      continue;
    return make_error(
        by_id ? "request " + real[i].id : fmt::format("request {}", i + 1),
        fmt::format("has {} + {} tokens in the log and {} + {} in the run", real[i].input_tokens,
                    real[i].output_tokens, ours[i].input_tokens, ours[i].output_tokens),
        by_id ? "make the run from the trace that the log was observed with"
              : "make the run from the same data set, in the same order");
  }
  return {};
}

}  // namespace

Begins begins_of(const Request& first, const Request& second) {
  if (first.arrival_s && second.arrival_s) return {*first.arrival_s, *second.arrival_s};
  return {first.queued_s, second.queued_s};
}

Result<std::vector<Request>> parse_requests(std::string_view text, const std::string& name) {
  std::vector<Request> out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", name, number);
    const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
    if (parsed.is_discarded()) return make_error(where, "is not JSON", "one object per line");
    Result<Request> request = parse_request(parsed, where);
    if (!request) return tl::unexpected(request.error());
    out.push_back(std::move(*request));
  }
  if (out.empty()) return make_error(name, "holds no requests");
  return out;
}

Result<Comparison> compare(const std::vector<Request>& real, const std::vector<Request>& ours, size_t skip) {
  std::vector<Request> matched = ours;
  Comparison out;
  const bool by_id = match_by_id(real, &matched);
  out.matched_by = by_id ? "id" : "order";
  out.not_in_log = ours.size() - matched.size();
  if (real.size() != matched.size()) {
    return make_error(
        "compare", fmt::format("the log has {} requests, the run finished {}", real.size(), matched.size()),
        "both must have the same requests");
  }
  if (skip >= real.size()) {
    return make_error("--skip", fmt::format("{} of {} requests leave nothing to compare", skip, real.size()),
                      {});
  }
  if (Result<void> ok = check_pairs(real, matched, by_id); !ok) return tl::unexpected<Error>(ok.error());
  out.skipped = skip;
  out.requests = real.size() - skip;
  const auto rest = [&](const std::vector<Request>& all) {
    return std::vector<Request>(all.begin() + static_cast<std::ptrdiff_t>(skip), all.end());
  };
  out.from_arrival = all_have_arrivals(real) && all_have_arrivals(matched);
  const auto theirs_ms = metrics_ms(rest(real), out.from_arrival),
             ours_ms = metrics_ms(rest(matched), out.from_arrival);
  for (size_t metric = 0; metric < kComparedMetrics.size(); ++metric) {
    const auto a = statistics(theirs_ms[metric]), b = statistics(ours_ms[metric]);
    for (size_t i = 0; i < a.size(); ++i) {
      out.rows.push_back({kComparedMetrics[metric], kComparedStatistics[i], a[i], b[i]});
    }
  }
  return out;
}

std::string format_comparison(const Comparison& comparison, OutputFormat format) {
  std::string out;
  if (format == OutputFormat::kTable) {
    out = fmt::format("{} requests, matched by {}; the first {} are not scored.\n", comparison.requests,
                      comparison.matched_by, comparison.skipped);
    if (comparison.not_in_log > 0)
      out += fmt::format("{} {} of the run {} not in the log.\n", comparison.not_in_log,
                         plural(comparison.not_in_log, "request"), comparison.not_in_log == 1 ? "is" : "are");
    out += comparison.from_arrival
               ? "TTFT and latency count from arrival_time, when the client sends: with the front end.\n"
               : "TTFT and latency count from queued_ts, as in vLLM's log: without the front end.\n";
    out += "Percentiles interpolate as numpy's do.\n\n";
    out += fmt::format("  {:<10}{:<10}{:>14}{:>14}{:>14}\n", "metric", "", "real, ms", "kvtwin, ms",
                       "difference");
    for (const ComparedRow& row : comparison.rows) {
      out += fmt::format("  {:<10}{:<10}{:>14.2f}{:>14.2f}{:>+12.2f} %\n", row.metric, row.statistic,
                         row.real_ms, row.ours_ms, row.difference_percent());
    }
    return out;
  }
  if (format == OutputFormat::kCsv) {
    out = "metric,statistic,real_ms,kvtwin_ms,difference_percent\n";
    for (const ComparedRow& row : comparison.rows) {
      out += fmt::format("{},{},{:.6f},{:.6f},{:.4f}\n", row.metric, row.statistic, row.real_ms, row.ours_ms,
                         row.difference_percent());
    }
    return out;
  }
  nlohmann::ordered_json all;
  all["requests"] = comparison.requests;
  all["skipped"] = comparison.skipped;
  all["matched_by"] = comparison.matched_by;
  all["not_in_log"] = comparison.not_in_log;
  all["ttft"] = comparison.from_arrival ? "first_token_ts - arrival_time" : "first_token_ts - queued_ts";
  for (const ComparedRow& row : comparison.rows) {
    nlohmann::ordered_json line;
    line["metric"] = row.metric;
    line["statistic"] = row.statistic;
    line["real_ms"] = row.real_ms;
    line["kvtwin_ms"] = row.ours_ms;
    line["difference_percent"] = row.difference_percent();
    all["rows"].push_back(line);
  }
  return all.dump(format == OutputFormat::kJson ? 2 : -1) + "\n";
}

bool DifferenceLimit::holds(double difference_percent) const {
  if (direction == '+') return difference_percent <= percent;
  if (direction == '-') return difference_percent >= -percent;
  return std::abs(difference_percent) <= percent;
}

std::string DifferenceLimit::text() const {
  return fmt::format("limit {}{} %", direction == ' ' ? "" : std::string(1, direction), percent);
}

Result<DifferenceLimit> parse_limit(const std::string& limit) {
  const size_t equals = limit.find('=');
  DifferenceLimit out{limit.substr(0, equals), 0};
  std::string_view text = equals == std::string::npos ? "" : std::string_view(limit).substr(equals + 1);
  if (text.starts_with('+') || text.starts_with('-')) out.direction = text.front(), text.remove_prefix(1);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), out.percent);
  if (error != std::errc() || stop != text.data() + text.size() || !(out.percent >= 0)) {
    return make_error("--limit=" + limit, fmt::format("\"{}\" is not a percentage", text),
                      "write --limit=ttft.mean=1.0, or +1.0 for increases alone");
  }
  return out;
}

Result<std::vector<std::string>> broken_limits(const Comparison& comparison,
                                               const std::vector<std::string>& limits) {
  std::vector<std::string> names, broken;
  for (const ComparedRow& row : comparison.rows) names.push_back(row.metric + "." + row.statistic);
  for (const std::string& limit : limits) {
    const Result<DifferenceLimit> parsed = parse_limit(limit);
    if (!parsed) return tl::unexpected<Error>(parsed.error());
    const std::string& name = parsed->metric;
    const std::string wanted = metric_name(name);
    const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& one) {
      return one == name || (!wanted.empty() && metric_name(one) == wanted);
    });
    if (found == names.end())
      return make_error("--limit=" + limit, fmt::format("no metric \"{}\"", name),
                        did_you_mean(name, names).empty() ? fmt::format("one of: {}", fmt::join(names, ", "))
                                                          : did_you_mean(name, names));
    const ComparedRow& row = comparison.rows[static_cast<size_t>(found - names.begin())];
    if (parsed->holds(row.difference_percent())) continue;
    broken.push_back(fmt::format("{} {}: real {:.2f} ms, kvtwin {:.2f} ms: {:+.2f} %, {}", row.metric,
                                 row.statistic, row.real_ms, row.ours_ms, row.difference_percent(),
                                 parsed->text()));
  }
  return broken;
}

}  // namespace kvtwin
