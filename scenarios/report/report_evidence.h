// Results of `kvtwin validate`, `kvtwin evaluate` and `kvtwin plan`, as a report draws them.

#ifndef KVTWIN_SCENARIOS_REPORT_REPORT_EVIDENCE_H_
#define KVTWIN_SCENARIOS_REPORT_REPORT_EVIDENCE_H_

#include <string>

#include "engine/base/result.h"
#include "reports/page/report.h"

namespace kvtwin {

enum class EvidenceKind { kValidation, kQuality, kPlan };

// The file with such evidence at `path` or in folder `path`: validation.json; quality.json or a .csv of the
// same rows; plan.json. "": there is none.
std::string evidence_file(const std::string& path, EvidenceKind kind);

// Reads `file` as JSON. Fails if it lacks a field that a page draws: `scenarios` with `scenario`, `open_loop`
// and `figures`; rows with `policy`, `budget`, `task`, `accuracy` and `kv_bytes_mean`; `load`, `need`,
// `answer`, `table`, and `candidates` with `name` and `usd_per_hour`.
Result<ReportEvidence> read_evidence(const std::string& file, EvidenceKind kind);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_REPORT_REPORT_EVIDENCE_H_
