// The text that vLLM's /metrics serves: counters and histograms, summed over engines and labels.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "scenarios/server_runs/measured.h"

namespace kvtwin {
namespace {

struct Histogram {
  std::map<double, double> upto;  // upper edge -> number of observations up to it
  double sum = 0, count = 0;

  // Linear within its bucket, from 0 or the previous edge; the last finite edge for ranks beyond it.
  double quantile(double fraction) const {
    const double rank = fraction * count;
    double edge = 0, below = 0;
    for (const auto& [upper, seen] : upto) {
      if (seen >= rank && seen > below)
        return std::isinf(upper) ? edge : edge + (upper - edge) * (rank - below) / (seen - below);
      if (!std::isinf(upper)) edge = upper;
      below = seen;
    }
    return edge;
  }
};

struct Scrape {
  std::map<std::string, double> counters;
  std::map<std::string, Histogram> histograms;
  bool any = false;
};

bool number(std::string_view text, double* out) {
  if (text == "+Inf") {
    *out = INFINITY;
    return true;
  }
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && stop == text.data() + text.size();
}

std::string_view label(std::string_view labels, std::string_view name) {
  const std::string begin = std::string(name) + "=\"";
  for (size_t at = labels.find(begin); at != std::string_view::npos; at = labels.find(begin, at + 1)) {
    if (at > 0 && labels[at - 1] != ',' && labels[at - 1] != '{') continue;
    const size_t from = at + begin.size();
    return labels.substr(from, labels.find('"', from) - from);
  }
  return {};
}

// NAME{LABELS} VALUE [TIME]
bool add_line(std::string_view line, Scrape* out) {
  const size_t brace = line.find('{');
  const size_t close = brace == std::string_view::npos ? brace : line.rfind('}');
  const size_t after = close == std::string_view::npos ? line.find(' ') : close + 1;
  if (after == std::string_view::npos || after >= line.size()) return false;
  std::string name(line.substr(0, std::min(brace, line.find(' '))));
  const std::string_view labels = close == std::string_view::npos ? "" : line.substr(brace, close - brace);
  std::string_view rest = line.substr(line.find_first_not_of(' ', after));
  rest = rest.substr(0, rest.find(' '));
  double value = 0;
  if (!number(rest, &value)) return rest == "NaN";
  if (!name.starts_with("vllm:")) return true;
  name = name.substr(5);
  out->any = true;
  const auto ends = [&](std::string_view end) {
    if (!name.ends_with(end)) return false;
    name.resize(name.size() - end.size());
    return true;
  };
  double edge = 0;
  if (ends("_bucket")) {
    if (!number(label(labels, "le"), &edge)) return false;
    out->histograms[name].upto[edge] += value;
  } else if (ends("_sum")) {
    out->histograms[name].sum += value;
  } else if (ends("_count")) {
    out->histograms[name].count += value;
  } else {
    ends("_total");
    out->counters[name] += value;
  }
  return true;
}

Result<Scrape> read_scrape(std::string_view text, const std::string& where) {
  Scrape out;
  for (uint64_t line_number = 1; !text.empty(); ++line_number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(' ') == std::string_view::npos || line.starts_with('#')) continue;
    if (!add_line(line, &out))
      return make_error(fmt::format("{}:{}", where, line_number),
                        fmt::format("\"{}\" is not a sample", line.substr(0, 80)),
                        "the text of vLLM's /metrics");
  }
  if (!out.any) return make_error(where, "has no metric of vLLM", "the text of vLLM's /metrics");
  return out;
}

void take_off(const Scrape& before, Scrape* from) {
  for (auto& [name, value] : from->counters) {
    if (const auto was = before.counters.find(name); was != before.counters.end()) value -= was->second;
  }
  for (auto& [name, histogram] : from->histograms) {
    const auto was = before.histograms.find(name);
    if (was == before.histograms.end()) continue;
    histogram.sum -= was->second.sum, histogram.count -= was->second.count;
    for (auto& [edge, seen] : histogram.upto) {
      if (const auto at = was->second.upto.find(edge); at != was->second.upto.end()) seen -= at->second;
    }
  }
}

void fill(const Scrape& scrape, std::initializer_list<const char*> names, v1::Distribution* out) {
  for (const char* name : names) {
    const auto found = scrape.histograms.find(name);
    if (found == scrape.histograms.end() || found->second.count <= 0) continue;
    const Histogram& one = found->second;
    out->set_count(static_cast<uint64_t>(one.count));
    out->set_mean_ns(1e9 * one.sum / one.count);
    out->set_p50_ns(1e9 * one.quantile(0.5)), out->set_p90_ns(1e9 * one.quantile(0.9));
    out->set_p95_ns(1e9 * one.quantile(0.95)), out->set_p99_ns(1e9 * one.quantile(0.99));
    out->set_max_ns(1e9 * one.quantile(1));
    return;
  }
}

}  // namespace

Result<MeasuredRun> read_prometheus(std::string_view text, std::string_view before, double seconds,
                                    const std::string& where) {
  Result<Scrape> scrape = read_scrape(text, where);
  if (!scrape) return tl::unexpected<Error>(scrape.error());
  if (!before.empty()) {
    const Result<Scrape> earlier = read_scrape(before, "--before");
    if (!earlier) return tl::unexpected<Error>(earlier.error());
    take_off(*earlier, &*scrape);
    for (const auto& [name, histogram] : scrape->histograms) {
      if (histogram.count < 0)
        return make_error("--before", fmt::format("has a larger vllm:{} than {}", name, where),
                          "an earlier scrape of the same server, without a restart in between");
    }
  }
  MeasuredRun run;
  run.name = "vllm metrics";
  v1::RunResult& out = run.result;
  v1::Latencies& latencies = *out.mutable_latencies();
  fill(*scrape, {"time_to_first_token_seconds"}, latencies.mutable_ttft());
  fill(*scrape, {"request_time_per_output_token_seconds"}, latencies.mutable_tpot());
  fill(*scrape, {"inter_token_latency_seconds", "time_per_output_token_seconds"}, latencies.mutable_itl());
  fill(*scrape, {"e2e_request_latency_seconds"}, latencies.mutable_e2e());
  const auto counter = [&](const char* name) {
    const auto found = scrape->counters.find(name);
    return found == scrape->counters.end() || found->second < 0 ? 0 : static_cast<uint64_t>(found->second);
  };
  out.mutable_requests()->set_finished(counter("request_success"));
  out.mutable_requests()->set_requests(counter("request_success"));
  out.mutable_requests()->set_preemptions(counter("num_preemptions"));
  out.mutable_rates()->set_prompt_tokens(counter("prompt_tokens"));
  out.mutable_rates()->set_output_tokens(counter("generation_tokens"));
  out.mutable_rates()->set_elapsed_ns(static_cast<int64_t>(seconds * 1e9));
  out.mutable_reuse()->set_admitted_prompt_tokens(counter("prefix_cache_queries"));
  out.mutable_reuse()->set_first_admission_tokens(counter("prefix_cache_hits"));
  out.add_notes(
      "percentiles are interpolated within the buckets of vLLM's histograms; maxima are edges of buckets");
  if (seconds <= 0) out.add_notes("the duration is not known, so there are no rates (--seconds)");
  return run;
}

}  // namespace kvtwin
