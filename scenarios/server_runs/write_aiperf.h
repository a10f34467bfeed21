// Writes a run as AIPerf's artifacts, so that `aiperf plot` reads it: profile_export.jsonl (one record per
// request), profile_export_aiperf.json and profile_export_aiperf.csv (statistics of each metric).
//
// Times become Unix times from an origin of 2020-01-01, because AIPerf's are. Percentiles are interpolated
// linearly, as AIPerf's are. Sources: AIPerf's tutorial "Working with Profile Export Files", its page
// "profile_export_aiperf.json Schema", and src/aiperf/plot/core/data_loader.py.

#ifndef KVTWIN_SCENARIOS_SERVER_RUNS_WRITE_AIPERF_H_
#define KVTWIN_SCENARIOS_SERVER_RUNS_WRITE_AIPERF_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "scenarios/app/results.h"

namespace kvtwin {

// `csv` is the text of a run's requests.csv. Error: it lacks a column, or a row has no number there.
Result<std::vector<RunFile>> aiperf_files(std::string_view csv, const std::string& model,
                                          const std::string& where);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SERVER_RUNS_WRITE_AIPERF_H_
