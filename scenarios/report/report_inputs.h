// Reads the input of a report from the folders of runs and sweeps.

#ifndef KVTWIN_SCENARIOS_REPORT_REPORT_INPUTS_H_
#define KVTWIN_SCENARIOS_REPORT_REPORT_INPUTS_H_

#include <string>
#include <vector>

#include "engine/base/result.h"
#include "reports/page/report.h"

namespace kvtwin {

// A folder with run.binpb is a run, one with index.sqlite a sweep. `command` is the command that makes the
// report. Runs and points are judged by `slos`, in the syntax of --slo; without any, by those of the plans
// among `dirs` that limit a metric.
Result<Report> read_report(const std::vector<std::string>& dirs, const std::string& command,
                           const std::vector<std::string>& slos);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_REPORT_REPORT_INPUTS_H_
