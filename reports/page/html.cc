// The page: the bundle of reports/web with the data in it.

#include <fmt/format.h>

#include <bit>
#include <map>
#include <nlohmann/json.hpp>

#include "reports/page/page.h"
#include "reports/page/report.h"

namespace kvtwin {
namespace {

static_assert(std::endian::native == std::endian::little, "columns are little-endian");

using Json = nlohmann::ordered_json;
constexpr auto kReplaceBadText = Json::error_handler_t::replace;

std::string base64(const void* data, size_t size) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::string out;
  out.reserve((size + 2) / 3 * 4);
  for (size_t i = 0; i < size; i += 3) {
    uint32_t word = 0;
    for (size_t b = 0; b < 3; ++b) word = word << 8 | (i + b < size ? bytes[i + b] : 0u);
    for (size_t d = 0; d < 4; ++d) out.push_back(i + d <= size ? kDigits[word >> (18 - 6 * d) & 63] : '=');
  }
  return out;
}

template <typename T>
std::string column(const std::vector<T>& values) {
  return base64(values.data(), values.size() * sizeof(T));
}

Json requests_json(const RequestsTable& all) {
  const RequestsTable requests = all.thinned(kReportRequestsMax);
  Json out;
  out["count"] = requests.count();
  out["of"] = all.count();
  out["ready_s"] = column(requests.ready_s);
  out["queue_s"] = column(requests.queue_s);
  out["ttft_s"] = column(requests.ttft_s);
  out["e2e_s"] = column(requests.e2e_s);
  out["prompt"] = column(requests.prompt);
  out["output"] = column(requests.output);
  out["reused"] = column(requests.reused);
  out["session"] = column(requests.session);
  if (!requests.agent.empty()) out["agent"] = column(requests.agent);
  return out;
}

Json tools_json(const ToolsTable& tools) {
  Json out;
  out["count"] = tools.count();
  out["released_s"] = column(tools.released_s);
  out["taken_s"] = column(tools.taken_s);
  out["agent"] = column(tools.agent);
  out["inner"] = column(tools.inner);
  out["session"] = column(tools.session);
  return out;
}

// Of each SLO [value, used fraction of the limit, kept]; null where the run lacks the figure.
Json slos_json(const std::vector<ReportSloValue>& slos) {
  Json out = Json::array();
  for (const ReportSloValue& one : slos)
    out.push_back(one.known ? Json::array({one.value, one.use, one.kept}) : Json());
  return out;
}

Json setting_json(const ReportSetting& setting) {
  Json out = Json::array();
  for (const auto& [label, value] : setting) out.push_back(Json::array({label, value}));
  return out;
}

Json run_json(const ReportRun& run) {
  Json out;
  out["dir"] = run.dir;
  out["name"] = run.result.scenario();
  out["setting"] = setting_json(run.setting);
  if (!run.limited_by.empty()) out["limited_by"] = run.limited_by;
  out["slos"] = slos_json(run.slos);
  out["summary"] = Json::parse(run.summary);
  out["scenario"] = run.result.scenario_text();
  out["notes"] = Json::array();
  for (const std::string& note : run.result.notes()) out["notes"].push_back(note);
  if (run.requests.count() > kReportRequestsMax)
    out["notes"].push_back(fmt::format("plots of single requests show one in {} of {} requests",
                                       (run.requests.count() + kReportRequestsMax - 1) / kReportRequestsMax,
                                       run.requests.count()));
  out["memory"] = Json::array();
  for (const v1::MemoryTerm& term : run.result.memory())
    out["memory"].push_back({{"name", term.name()}, {"bytes", term.bytes()}});
  out["series"] = Json::array();
  for (const v1::TimeSeries& series : run.result.series()) {
    out["series"].push_back({{"name", series.name()},
                             {"unit", series.unit()},
                             {"width_s", static_cast<double>(series.width_ns()) / 1e9},
                             {"mean", std::vector<double>(series.mean().begin(), series.mean().end())}});
  }
  if (!run.heads.empty()) out["heads"] = Json::parse(run.heads);
  if (!run.timeline.empty()) out["timeline"] = Json::parse(run.timeline);
  out["requests"] = requests_json(run.requests);
  if (run.tools.count() > 0) out["tools"] = tools_json(run.tools);
  out["sessions"] = run.requests.sessions;
  return out;
}

Json sweep_json(const ReportSweep& sweep) {
  Json out;
  out["dir"] = sweep.dir;
  out["setting"] = setting_json(sweep.setting);
  out["axes"] = sweep.axes;
  if (!sweep.command.empty()) out["command"] = sweep.command;
  for (const ReportSweep::Failure& one : sweep.failures)
    out["failures"].push_back({{"points", one.points}, {"error", one.error}});
  out["points"] = Json::array();
  for (const ReportSweep::Point& point : sweep.points)
    out["points"].push_back({{"values", point.values},
                             {"dir", point.dir},
                             {"slos", slos_json(point.slos)},
                             {"metrics", Json::parse(point.metrics)}});
  return out;
}

// Gives runs of the same scenario distinct names, taken from their folders.
void tell_apart(Json* runs) {
  std::map<std::string, int> same;
  for (const auto& run : *runs) ++same[run["name"].get<std::string>()];
  for (auto& run : *runs) {
    if (same[run["name"].get<std::string>()] > 1) run["name"] = run["dir"];
  }
}

}  // namespace

std::string report_html(const Report& report) {
  Json data;
  data["command"] = report.command;
  data["version"] = KVTWIN_VERSION;
  data["slos"] = Json::array();
  for (const ReportSlo& slo : report.slos)
    data["slos"].push_back({{"text", slo.text}, {"figure", slo.figure}, {"limit", slo.limit}});
  data["metrics"] = Json::object();
  for (const ReportMetric& metric : report.metrics)
    data["metrics"][metric.name] = {metric.unit, metric.definition};
  data["runs"] = Json::array();
  for (const ReportRun& run : report.runs) data["runs"].push_back(run_json(run));
  tell_apart(&data["runs"]);
  data["sweeps"] = Json::array();
  for (const ReportSweep& sweep : report.sweeps) data["sweeps"].push_back(sweep_json(sweep));
  const auto evidence = [&](const char* name, const std::vector<ReportEvidence>& files) {
    data[name] = Json::array();
    for (const ReportEvidence& one : files) {
      data[name].push_back({{"dir", one.dir}, {"data", Json::parse(one.json)}});
      if (!one.setting.empty()) data[name].back()["setting"] = setting_json(one.setting);
    }
  };
  evidence("validations", report.validations);
  evidence("qualities", report.qualities);
  evidence("plans", report.plans);
  std::string text;
  for (const char c : data.dump(-1, ' ', false, kReplaceBadText)) {
    // The data must not end the script element that contains it.
    if (c == '<') {
      text += "\\u003c";
    } else {
      text.push_back(c);
    }
  }
  std::string page(report_page());
  constexpr std::string_view kPlace = "/*DATA*/";
  return page.replace(page.find(kPlace), kPlace.size(), text);
}

}  // namespace kvtwin
