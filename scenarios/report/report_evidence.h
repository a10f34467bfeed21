// What other commands found out about how good something is, as a report draws it.

#ifndef KVTWIN_SCENARIOS_REPORT_REPORT_EVIDENCE_H_
#define KVTWIN_SCENARIOS_REPORT_REPORT_EVIDENCE_H_

#include <string>

#include "engine/base/result.h"
#include "reports/page/report.h"

namespace kvtwin {

enum class EvidenceKind { kValidation, kQuality };

// The file of such evidence that `path` is or holds: validation.json; quality.json or a .csv of the same
// rows.
// "": none.
std::string evidence_file(const std::string& path, EvidenceKind kind);

// `file` as JSON. An error if it lacks what a page draws: `scenarios` with `scenario`, `open_loop` and
// `figures`; rows with `policy`, `budget`, `task`, `accuracy` and `kv_bytes_mean`.
Result<ReportEvidence> read_evidence(const std::string& file, EvidenceKind kind);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_REPORT_REPORT_EVIDENCE_H_
