// A report: runs and sweeps as one self-contained HTML page, or as Markdown for a pull request.
//
// It is made from results only (run.binpb, requests.csv, a sweep's points); it cannot show what a backend did
// not write. The page contains the data as JSON, requests as columns, and the bundle of reports/web, which
// draws them.

#ifndef KVTWIN_REPORTS_PAGE_REPORT_H_
#define KVTWIN_REPORTS_PAGE_REPORT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reports/page/requests_table.h"
#include "reports/page/tools_table.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

// One SLO of a run or of a point of a sweep.
struct ReportSloValue {
  double value = 0, use = 0;  // the figure, and the used fraction of its limit
  bool known = false, kept = false;
};

// What the header of a page states: "model", "llama-3.1-8b". Empty: not known.
using ReportSetting = std::vector<std::pair<std::string, std::string>>;

struct ReportRun {
  std::string dir;
  v1::RunResult result;
  ReportSetting setting;
  std::string limited_by;            // a sentence; "": not known
  std::vector<ReportSloValue> slos;  // of Report.slos
  std::string summary;               // the result as a flat JSON object, in the form for programs
  RequestsTable requests;
  ToolsTable tools;   // empty: the trace has no tools
  std::string heads;  // heads.json, a JSON object; "": all heads hold equal fractions
  // timeline.json reduced to a JSON object with names and spans [engine, row, name, from s, to s, pages]; row
  // 0 is steps, 1 host to GPU, 2 GPU to host. "": none was written.
  std::string timeline;
};

struct ReportSweep {
  std::string dir;
  ReportSetting setting;  // what all points have in common
  std::vector<std::string> axes;
  struct Point {
    std::vector<std::string> values;  // by axis
    std::string metrics;              // a flat JSON object
    std::string dir;                  // folder of its run
    std::vector<ReportSloValue> slos;
  };
  std::vector<Point> points;
  std::string command = {};  // the command that repeats the sweep; "": not known
  struct Failure {
    uint64_t points = 0;
    std::string error;
  };
  std::vector<Failure> failures = {};  // points without a result, by their error
};

// A file of evidence as it was written; valid JSON.
struct ReportEvidence {
  std::string dir;
  std::string json;
  ReportSetting setting = {};  // of a plan: what all candidates have in common
};

// An SLO that runs and points are judged by.
struct ReportSlo {
  std::string text;    // "ttft_p99<2s"
  std::string figure;  // its metric; "": a fraction of requests
  double limit = 0;    // in the metric's unit
};

// A metric's definition, shown where the page names the metric.
struct ReportMetric {
  std::string name, unit, definition;
};

struct Report {
  std::string command;  // the command that makes the report
  std::vector<ReportSlo> slos;
  std::vector<ReportMetric> metrics;
  std::vector<ReportRun> runs;
  std::vector<ReportSweep> sweeps;
  std::vector<ReportEvidence> validations;  // validation.json of kvtwin validate
  std::vector<ReportEvidence> qualities;    // quality.json of kvtwin evaluate
  std::vector<ReportEvidence> plans;        // plan.json of kvtwin plan
};

// A run with more requests is thinned out evenly, and the page notes it, so that it stays below 5 MB.
constexpr uint64_t kReportRequestsMax = 60'000;

std::string report_html(const Report& report);
std::string report_markdown(const Report& report);

}  // namespace kvtwin

#endif  // KVTWIN_REPORTS_PAGE_REPORT_H_
