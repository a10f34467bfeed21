// The SLOs that the runs and points of a report are judged by.

#ifndef KVTWIN_SCENARIOS_REPORT_REPORT_SLOS_H_
#define KVTWIN_SCENARIOS_REPORT_REPORT_SLOS_H_

#include <string>
#include <vector>

#include "engine/base/result.h"
#include "reports/page/report.h"

namespace kvtwin {

// Fills Report.slos, and `slos` of runs and points. `texts` are in the syntax of --slo; if there are none,
// the SLOs of the plans of the report count, as far as they limit a metric.
Result<void> judge_report(const std::vector<std::string>& texts, Report* report);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_REPORT_REPORT_SLOS_H_
