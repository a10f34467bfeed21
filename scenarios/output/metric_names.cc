#include "scenarios/output/metric_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "models/files/textproto.h"

namespace kvtwin {

extern const char kMetricsPage[];

namespace {

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string_view::npos ? "" : std::string(text.substr(begin, end - begin + 1));
}

std::vector<std::string> cells(std::string_view line) {
  std::vector<std::string> out;
  for (size_t begin = 1; begin < line.size();) {
    const size_t end = std::min(line.find('|', begin), line.size());
    out.push_back(trimmed(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return out;
}

void replace_all(std::string* text, std::string_view from, std::string_view to) {
  for (size_t at = text->find(from); at != std::string::npos; at = text->find(from, at + to.size()))
    text->replace(at, from.size(), to);
}

constexpr std::array kStatistics = {"mean", "p50", "p90", "p95", "p99"};

std::vector<std::string> split_at(std::string_view text, std::string_view mark) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(mark, begin), text.size());
    out.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + mark.size();
  }
  return out;
}

std::string in_words(std::string_view statistic) {
  return statistic == "mean" ? "mean" : fmt::format("{}th percentile", statistic.substr(1));
}

// One row of a table may name several metrics, then its definition has a part for each, divided by
// semicolons; POINT stands for five statistics.
void add_row(const std::vector<std::string>& row, std::vector<MetricName>* out) {
  std::string text = row[2];
  std::erase(text, '`');
  const auto names = static_cast<size_t>(std::count(row[0].begin(), row[0].end(), '`') / 2);
  std::vector<std::string> parts = split_at(text, "; ");
  if (parts.size() != names) parts.assign(names, text);
  auto definition = parts.begin();
  for (size_t at = row[0].find('`'); at != std::string::npos; ++definition) {
    const size_t end = row[0].find('`', at + 1);
    if (end == std::string::npos) return;
    const std::string name = row[0].substr(at + 1, end - at - 1);
    const size_t point = name.find("POINT");
    for (const char* statistic : kStatistics) {
      std::string one = name;
      if (point != std::string::npos) one.replace(point, 5, statistic);
      out->push_back({one, row[1],
                      point == std::string::npos
                          ? *definition
                          : fmt::format("{} of: {}", in_words(statistic), *definition)});
      if (point == std::string::npos) break;
    }
    at = row[0].find('`', end + 1);
  }
}

std::vector<MetricName> read_page() {
  std::vector<MetricName> out;
  std::istringstream page(kMetricsPage);
  bool table = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| name | unit |")) {
      table = true;
    } else if (!line.starts_with('|')) {
      table = false;
    } else if (const std::vector<std::string> row = cells(line); table && row.size() >= 3) {
      add_row(row, &out);
    }
  }
  return out;
}

bool is_metric(const std::string& name) {
  return std::any_of(metric_names().begin(), metric_names().end(),
                     [&](const MetricName& one) { return one.name == name; });
}

// Other names of latencies and statistics, by what they end or begin with.
std::string in_our_words(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = c == '.' || c == '-' ? '_' : c;
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {{"median", "p50"},
                                                                      {"request_latency", "e2e"},
                                                                      {"e2el", "e2e"},
                                                                      {"latency_", "e2e_"},
                                                                      {"_latency", "_e2e"}};
  for (const auto& [theirs, ours] : kParts) replace_all(&out, theirs, ours);
  if (out.starts_with("session_") && !out.starts_with("session_makespan") &&
      !out.starts_with("session_served"))
    out.insert(7, "_makespan");
  return out;
}

}  // namespace

const std::vector<MetricName>& metric_names() {
  static const std::vector<MetricName> kNames = read_page();
  return kNames;
}

std::string metric_name(std::string_view word) {
  const std::string written(word), ours = in_our_words(word);
  for (const std::string& one : {written, ours, ours + "_ms", ours + "_s"}) {
    if (is_metric(one)) return one;
  }
  // vLLM's p99_ttft_ms and mean_ttft_ms.
  if (const size_t at = ours.find('_'); at != std::string::npos) {
    std::string rest = ours.substr(at + 1);
    if (rest.ends_with("_ms")) rest.resize(rest.size() - 3);
    if (const std::string turned = rest + "_" + ours.substr(0, at) + "_ms"; is_metric(turned)) return turned;
  }
  return {};
}

Result<std::vector<std::string>> metric_columns(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& word : words) {
    if (word.empty()) continue;
    out.push_back(metric_name(word));
    if (out.back().empty())
      return make_error("--columns", fmt::format("there is no metric \"{}\"", word), metric_hint(word));
  }
  return out;
}

std::string metric_hint(std::string_view word) {
  std::vector<std::string> names;
  for (const MetricName& one : metric_names()) names.push_back(one.name);
  const std::string close = did_you_mean(word, names);
  return close.empty() ? "kvtwin list metrics prints all" : close;
}

}  // namespace kvtwin
