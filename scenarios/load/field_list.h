// All fields of a scenario, as --set takes them, with their meaning from docs/reference/scenario-fields.md,
// which is part of the program.

#ifndef KVTWIN_SCENARIOS_LOAD_FIELD_LIST_H_
#define KVTWIN_SCENARIOS_LOAD_FIELD_LIST_H_

#include <string>
#include <vector>

namespace kvtwin {

struct FieldLine {
  std::string path;     // limits.requests_max; groups of a list end with []: engines.further[].count
  std::string kind;     // text, number, ...
  std::string value;    // the default
  std::string comment;  // one line
};

std::vector<FieldLine> scenario_fields();

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_FIELD_LIST_H_
