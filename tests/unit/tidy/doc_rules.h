// Rules about references to the documentation (docs/contributing/style.md#references). Each finding reads
// `path:line: problem`. Links of Markdown pages are checked by tests/docs.

#ifndef KVTWIN_TESTS_UNIT_TIDY_DOC_RULES_H_
#define KVTWIN_TESTS_UNIT_TIDY_DOC_RULES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/tidy/source_rules.h"

namespace kvtwin::tidy {

// The valid anchors of each page: ids of `<a id="...">`, and headings of plain words.
using Anchors = std::map<std::string, std::set<std::string>>;
Anchors read_anchors(const std::vector<SourceFile>& pages);

// A path under docs/ must resolve wherever it appears: PAGE.md, PAGE.md#anchor or PAGE.md#anchor, #other.
Findings check_references(const SourceFile& file, const Anchors& anchors);

// Documents that are not in the repository must not be referenced.
Findings check_retired_documents(const SourceFile& file);

}  // namespace kvtwin::tidy

#endif  // KVTWIN_TESTS_UNIT_TIDY_DOC_RULES_H_
