// A report: runs and sweeps as one self-contained HTML page, or as Markdown for a pull request.
//
// It is made of results only (run.binpb, requests.csv, a sweep's points): what a backend did not write down,
// no report knows. The page holds the data as JSON, requests as columns, and the bundle of reports/web, which
// draws it.

#ifndef KVTWIN_REPORTS_PAGE_REPORT_H_
#define KVTWIN_REPORTS_PAGE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "reports/page/requests_table.h"
#include "reports/page/tools_table.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

struct ReportRun {
  std::string dir;
  v1::RunResult result;
  std::string summary;  // a flat JSON object: the result as programs read it
  RequestsTable requests;
  ToolsTable tools;   // none: the trace has none
  std::string heads;  // heads.json, a JSON object; "": all heads hold the same
  // Of timeline.json: a JSON object with names and spans [engine, row, name, from s, to s, pages]; row 0
  // steps, 1 host to gpu, 2 gpu to host. "": none was written.
  std::string timeline;
};

struct ReportSweep {
  std::string dir;
  std::vector<std::string> axes;
  struct Point {
    std::vector<std::string> values;  // by axis
    std::string metrics;              // a flat JSON object
  };
  std::vector<Point> points;
};

// A file that says how good something is: as it was written, valid JSON.
struct ReportEvidence {
  std::string dir;
  std::string json;
};

struct Report {
  std::string command;  // that makes it
  std::vector<ReportRun> runs;
  std::vector<ReportSweep> sweeps;
  std::vector<ReportEvidence> validations;  // validation.json of kvtwin validate
  std::vector<ReportEvidence> qualities;    // quality.json of kvtwin evaluate
};

// More requests than this of one run are thinned out evenly, and the page says so: it stays below 5 MB.
constexpr uint64_t kReportRequestsMax = 60'000;

std::string report_html(const Report& report);
std::string report_markdown(const Report& report);

}  // namespace kvtwin

#endif  // KVTWIN_REPORTS_PAGE_REPORT_H_
