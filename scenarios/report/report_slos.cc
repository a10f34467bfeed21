#include "scenarios/report/report_slos.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "models/files/textproto.h"
#include "scenarios/plan/slo.h"

namespace kvtwin {
namespace {

// requests.csv of the largest traces is some tens of megabytes.
constexpr size_t kJudgedBytesMax = size_t{1} << 30;

// A plan does not keep the conditions on each request, so goodput cannot be judged again.
std::vector<Slo> slos_of_plans(const Report& report) {
  std::vector<Slo> out;
  for (const ReportEvidence& plan : report.plans) {
    for (const nlohmann::json& candidate : nlohmann::json::parse(plan.json)["candidates"]) {
      if (!candidate.contains("slos") || !candidate["slos"].is_object()) continue;
      for (const auto& [text, value] : candidate["slos"].items()) {
        const Result<Slo> slo = parse_slo(text);
        const bool first =
            std::none_of(out.begin(), out.end(), [&](const Slo& one) { return one.text == text; });
        if (slo && slo->kind == Slo::Kind::kFigure && first) out.push_back(*slo);
      }
    }
  }
  return out;
}

// Figures that a real server's files lack are 0 in a result.
std::map<std::string, double> limited_figures(const std::string& metrics) {
  const nlohmann::json all = nlohmann::json::parse(metrics);
  const bool measured = all.value("backend", "") == "measured";
  std::map<std::string, double> out;
  for (const auto& [name, value] : all.items()) {
    if (value.is_number() && !(measured && value == 0)) out[name] = value.get<double>();
  }
  return out;
}

// One value for each SLO of the report: conditions on each request are part of the goodput.
Result<std::vector<ReportSloValue>> judged(const std::vector<Slo>& slos, const std::string& metrics,
                                           const std::string& dir) {
  std::string requests;
  if (std::any_of(slos.begin(), slos.end(), [](const Slo& slo) { return slo.kind == Slo::Kind::kGoodput; })) {
    Result<std::string> text = read_text_file(dir + "/requests.csv", kJudgedBytesMax);
    if (!text) return tl::unexpected<Error>(text.error());
    requests = std::move(*text);
  }
  const std::vector<SloValue> values = judge(slos, limited_figures(metrics), requests);
  std::vector<ReportSloValue> out;
  for (size_t i = 0; i < slos.size(); ++i) {
    if (slos[i].kind != Slo::Kind::kOfEachRequest)
      out.push_back({values[i].value, values[i].use, values[i].known, values[i].kept});
  }
  return out;
}

}  // namespace

Result<void> judge_report(const std::vector<std::string>& texts, Report* report) {
  std::vector<Slo> slos;
  if (texts.empty()) {
    slos = slos_of_plans(*report);
  } else {
    Result<std::vector<Slo>> parsed = parse_slos(texts);
    if (!parsed) return tl::unexpected<Error>(parsed.error());
    slos = std::move(*parsed);
  }
  for (const Slo& slo : slos) {
    if (slo.kind != Slo::Kind::kOfEachRequest) report->slos.push_back({slo.text, slo.figure, slo.limit});
  }
  for (ReportRun& run : report->runs) {
    Result<std::vector<ReportSloValue>> values = judged(slos, run.summary, run.dir);
    if (!values) return tl::unexpected<Error>(values.error());
    run.slos = std::move(*values);
  }
  for (ReportSweep& sweep : report->sweeps) {
    for (ReportSweep::Point& point : sweep.points) {
      Result<std::vector<ReportSloValue>> values = judged(slos, point.metrics, point.dir);
      if (!values) return tl::unexpected<Error>(values.error());
      point.slos = std::move(*values);
    }
  }
  return {};
}

}  // namespace kvtwin
