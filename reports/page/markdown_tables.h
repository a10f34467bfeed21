// Markdown tables, and the tables of evidence.

#ifndef KVTWIN_REPORTS_PAGE_MARKDOWN_TABLES_H_
#define KVTWIN_REPORTS_PAGE_MARKDOWN_TABLES_H_

#include <string>
#include <vector>

#include "reports/page/report.h"

namespace kvtwin {

std::string markdown_line(std::vector<std::string> cells);
// The first line of a table and the rule below it.
std::string markdown_head(const std::vector<std::string>& cells);

// A row per scenario: verdicts on its figures, replays, open loop.
std::string validation_markdown(const ReportEvidence& evidence);
// The answer in sentences, and a row per candidate.
std::string plan_markdown(const ReportEvidence& evidence);
// A row per policy and budget, a column per task.
std::string quality_markdown(const ReportEvidence& evidence);

}  // namespace kvtwin

#endif  // KVTWIN_REPORTS_PAGE_MARKDOWN_TABLES_H_
