// Fields that are read only under some other setting: replay.population is read when replay.arrivals is
// fixed_population, and ignored otherwise. A command that is asked to change an ignored field refuses,
// because its answer would be to another question than the user's.
//
// Only fields set on the command line are refused. A scenario file may hold settings of several modes, among
// which one --set chooses.

#ifndef KVTWIN_SCENARIOS_LOAD_UNREAD_FIELDS_H_
#define KVTWIN_SCENARIOS_LOAD_UNREAD_FIELDS_H_

#include <optional>
#include <string>
#include <vector>

#include "scenarios/load/scenario.h"
#include "traces/replay/replay.h"

namespace kvtwin {

// Explains, as an error at `where`, why a change of `field` ("replay.population") changes nothing in
// `values`; nullopt if the field is read. replay.mode "auto" counts as every mode that it may become.
std::optional<Error> why_unread(const v1::Scenario& values, const std::string& field,
                                const std::string& where);

// An error for each of `sets` ("field.path=value") that none of `all` reads.
Errors unread_sets(const std::vector<v1::Scenario>& all, const std::vector<std::string>& sets);
// The same for one scenario, for whose trace replay.mode "auto" became `mode`.
Errors unread_sets(const v1::Scenario& values, ReplayMode mode, const std::vector<std::string>& sets);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_UNREAD_FIELDS_H_
