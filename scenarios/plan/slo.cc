#include "scenarios/plan/slo.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>

#include "models/files/textproto.h"
#include "scenarios/output/metric_names.h"

namespace kvtwin {
namespace {

const std::vector<std::string> kLatencies = {"ttft", "ttft_from_queued", "tpot",          "itl",
                                             "e2e",  "session",          "session_served"};
const std::vector<std::string> kPoints = {"mean", "p50", "p90", "p95", "p99"};
const std::vector<std::string> kOfRequests = {"ttft", "tpot", "e2e"};
constexpr std::array<std::pair<std::string_view, double>, 6> kUnitsMs{
    {{"ns", 1e-6}, {"us", 1e-3}, {"ms", 1}, {"s", 1e3}, {"min", 60e3}, {"h", 3.6e6}}};

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string did_you(const std::string& word, const std::vector<std::string>& known) {
  const std::string close = did_you_mean(word, known);
  return close.empty() ? fmt::format("one of: {}", fmt::join(known, ", ")) : close;
}

// "TTFT p95 < 5 s" as ttft_p95<5s.
std::string plain(std::string_view text) {
  std::string out;
  bool gap = false, compared = false;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isspace(byte) != 0) {
      gap = true;
      continue;
    }
    compared = compared || c == '<' || c == '>';
    if (gap && !compared && !out.empty()) out += '_';
    gap = false;
    out += compared ? c : static_cast<char>(std::tolower(byte));
  }
  return out;
}

// What an unknown latency could mean: ttft_95 is ttft_p95.
std::string latency_hint(const std::string& name) {
  for (const std::string& latency : kLatencies) {
    if (!name.starts_with(latency) || name.size() == latency.size()) continue;
    std::string point = name.substr(latency.size());
    std::erase(point, '_');
    if (point.find_first_not_of("0123456789") == std::string::npos) point.insert(0, 1, 'p');
    if (has(kPoints, point)) return fmt::format("did you mean \"{}_{}\"?", latency, point);
    if (name[latency.size()] == '_' && point[0] == 'p')
      return fmt::format("{} with one of: {}", latency, fmt::join(kPoints, ", "));
  }
  return did_you(name, kLatencies);
}

struct Words {
  std::string name, unit;
  bool below = true;
  double number = 0;
};

Result<Words> split(std::string_view text, const std::string& where) {
  const size_t at = text.find_first_of("<>");
  if (at == std::string_view::npos || at == 0)
    return make_error(where, "compares nothing", "as in ttft_p99<2s or goodput>=95%");
  Words words;
  words.name = text.substr(0, at);
  words.below = text[at] == '<';
  std::string_view rest = text.substr(at + 1);
  if (!rest.empty() && rest.front() == '=') rest.remove_prefix(1);
  const auto [end, failed] = std::from_chars(rest.data(), rest.data() + rest.size(), words.number);
  if (failed != std::errc{} || !std::isfinite(words.number))
    return make_error(where, fmt::format("\"{}\" is not a number", rest), "as in ttft_p99<2s");
  words.unit = rest.substr(static_cast<size_t>(end - rest.data()));
  return words;
}

Result<void> take_time(const Words& words, const std::string& where, Slo* slo) {
  const auto unit = std::find_if(kUnitsMs.begin(), kUnitsMs.end(),
                                 [&](const auto& one) { return one.first == words.unit; });
  if (unit == kUnitsMs.end()) {
    return make_error(where,
                      words.unit.empty() ? fmt::format("{} has no unit", words.number)
                                         : fmt::format("there is no unit of time \"{}\"", words.unit),
                      "ns, us, ms, s, min or h");
  }
  if (!words.below)
    return make_error(where, fmt::format("{} cannot have a lower limit", words.name),
                      "latencies take < or <=");
  if (words.number <= 0)
    return make_error(where, fmt::format("the limit is {}", words.number), "more than 0");
  slo->limit = words.number * unit->second;
  return {};
}

// Splits "ttft_p99" into latency and statistic; nullopt if it does not end in a statistic.
std::optional<std::pair<std::string, std::string>> latency_of(const std::string& name) {
  const size_t at = name.rfind('_');
  if (at == std::string::npos || !has(kPoints, name.substr(at + 1))) return std::nullopt;
  return std::pair{name.substr(0, at), name.substr(at + 1)};
}

// The short form of a latency's metric: session_makespan_p90_ms and session.p90 are session_p90.
std::string short_name(const std::string& name) {
  std::string full = metric_name(name);
  if (!full.ends_with("_ms")) return name;
  full.resize(full.size() - 3);
  if (full.starts_with("session_makespan_")) full.erase(7, std::string_view("_makespan").size());
  return full;
}

// Latencies of one row of requests.csv, in ms.
struct RequestTimes {
  double ttft = 0, tpot = 0, e2e = 0;
  double of(const std::string& figure) const {
    return figure == "ttft" ? ttft : figure == "tpot" ? tpot : e2e;
  }
};

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

double goodput(const std::vector<Slo>& slos, const std::string& requests_csv, double slowdown) {
  std::istringstream in(requests_csv);
  std::string line;
  std::getline(in, line);
  const std::vector<std::string> names = cells_of(line);
  const auto column = [&](const char* name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  const size_t end = column("end"), output = column("output_tokens"), ready = column("ready_ns"),
               first = column("first_token_ns"), finished = column("finished_ns");
  double good = 0, all = 0;
  while (std::getline(in, line)) {
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() != names.size()) continue;
    if (cells[end] == "cancelled") continue;
    ++all;
    if (cells[end] != "finished") continue;
    const auto ms = [&](size_t a, size_t b) {
      return (std::stod(cells[b]) - std::stod(cells[a])) / 1e6 * slowdown;
    };
    RequestTimes times;
    times.e2e = ms(ready, finished);
    if (!cells[first].empty()) times.ttft = ms(ready, first);
    if (const double tokens = std::stod(cells[output]); tokens > 1 && !cells[first].empty())
      times.tpot = ms(first, finished) / (tokens - 1);
    good += std::all_of(slos.begin(), slos.end(), [&](const Slo& slo) {
      return slo.kind != Slo::Kind::kOfEachRequest || times.of(slo.figure) <= slo.limit;
    });
  }
  return all > 0 ? good / all : 0;
}

bool is_latency(const std::string& figure) { return figure.ends_with("_ms"); }

}  // namespace

Result<Slo> parse_slo(std::string_view text) {
  const std::string where = fmt::format("--slo={}", text);
  const std::string written = plain(text);
  const Result<Words> words = split(written, where);
  if (!words) return tl::unexpected<Error>(words.error());
  Slo slo;
  slo.text = written;
  slo.below = words->below;
  if (words->name == "goodput") {
    slo.kind = Slo::Kind::kGoodput;
    if (slo.below) return make_error(where, "goodput cannot have an upper limit", "as in goodput>=95%");
    slo.limit = words->unit == "%" ? words->number / 100 : words->number;
    if ((!words->unit.empty() && words->unit != "%") || slo.limit <= 0 || slo.limit >= 1)
      return make_error(where, fmt::format("goodput is {}{}", words->number, words->unit),
                        "more than 0 %, less than 100 %");
    return slo;
  }
  if (const auto latency = words->unit.empty() && words->name.ends_with("_ms")
                               ? std::nullopt
                               : latency_of(short_name(words->name))) {
    if (!has(kLatencies, latency->first))
      return make_error(where, fmt::format("there is no latency \"{}\"", latency->first),
                        did_you(latency->first, kLatencies));
    if (Result<void> ok = take_time(*words, where, &slo); !ok) return tl::unexpected<Error>(ok.error());
    slo.figure =
        (latency->first == "session" ? "session_makespan" : latency->first) + "_" + latency->second + "_ms";
    return slo;
  }
  if (has(kLatencies, words->name)) {
    slo.kind = Slo::Kind::kOfEachRequest;
    slo.figure = words->name;
    if (!has(kOfRequests, slo.figure))
      return make_error(where, fmt::format("{} is not a latency of a request", slo.figure),
                        fmt::format("{}_p90, for example; of each request: ttft, tpot, e2e", slo.figure));
    if (Result<void> ok = take_time(*words, where, &slo); !ok) return tl::unexpected<Error>(ok.error());
    return slo;
  }
  if (!words->unit.empty())
    return make_error(where, fmt::format("there is no latency \"{}\"", words->name),
                      fmt::format("{}; other figures take a plain number", latency_hint(words->name)));
  slo.figure = metric_name(words->name);
  if (slo.figure.empty())
    return make_error(where, fmt::format("there is no metric \"{}\"", words->name), metric_hint(words->name));
  slo.limit = words->number;
  return slo;
}

Result<std::vector<Slo>> parse_slos(const std::vector<std::string>& texts) {
  std::vector<Slo> slos;
  size_t goodputs = 0, of_requests = 0;
  for (const std::string& text : texts) {
    Result<Slo> slo = parse_slo(text);
    if (!slo) return tl::unexpected<Error>(slo.error());
    goodputs += slo->kind == Slo::Kind::kGoodput;
    of_requests += slo->kind == Slo::Kind::kOfEachRequest;
    slos.push_back(std::move(*slo));
  }
  if (slos.empty()) return make_error("--slo", "no SLO is given", "as in --slo='ttft_p99<2s'");
  if (goodputs > 1) return make_error("--slo", "goodput is given twice", "keep one");
  if (goodputs == 1 && of_requests == 0)
    return make_error("--slo", "goodput without conditions on each request",
                      "add a condition that good requests meet: --slo='ttft<2s'");
  if (goodputs == 0 && of_requests > 0)
    return make_error("--slo", "conditions on each request without a goodput",
                      "add --slo='goodput>=95%', or a percentile: ttft_p95<2s");
  return slos;
}

std::vector<SloValue> judge(const std::vector<Slo>& slos, const std::map<std::string, double>& figures,
                            const std::string& requests_csv, double slowdown) {
  std::vector<SloValue> out;
  for (const Slo& slo : slos) {
    SloValue one;
    if (slo.kind == Slo::Kind::kOfEachRequest) {
      one.known = one.kept = true;  // the goodput SLO judges it
    } else if (slo.kind == Slo::Kind::kGoodput) {
      one.known = !requests_csv.empty();
      one.value = goodput(slos, requests_csv, slowdown);
      one.use = (1 - one.value) / (1 - slo.limit);
      one.kept = one.known && one.value >= slo.limit;
    } else if (const auto found = figures.find(slo.figure); found != figures.end()) {
      one.known = true;
      one.value = found->second * (is_latency(slo.figure) ? slowdown : 1);
      one.use = slo.below ? one.value / slo.limit : (one.value > 0 ? slo.limit / one.value : 1e9);
      one.kept = slo.below ? one.value <= slo.limit : one.value >= slo.limit;
    }
    out.push_back(one);
  }
  return out;
}

}  // namespace kvtwin
