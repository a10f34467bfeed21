// Fields that count only under some other setting: replay.population is read when arrivals are
// fixed_population, and ignored otherwise. A command that is asked to change an ignored field refuses,
// because its answer would be to another question than the one asked.
//
// Only what the command line sets is refused. A scenario file may hold settings of several modes, so that one
// --set chooses among them.

#ifndef KVTWIN_SCENARIOS_LOAD_UNREAD_FIELDS_H_
#define KVTWIN_SCENARIOS_LOAD_UNREAD_FIELDS_H_

#include <optional>
#include <string>
#include <vector>

#include "scenarios/load/scenario.h"
#include "traces/replay/replay.h"

namespace kvtwin {

// Why a change of `field` ("replay.population") changes nothing in `values`, as an error at `where`; nothing
// if the field is read. replay.mode "auto" counts as every mode that it may become.
std::optional<Error> why_unread(const v1::Scenario& values, const std::string& field,
                                const std::string& where);

// Of `sets` ("field.path=value"), those that none of `all` reads.
Errors unread_sets(const std::vector<v1::Scenario>& all, const std::vector<std::string>& sets);
// The same of one scenario, whose trace made `mode` of replay.mode "auto".
Errors unread_sets(const v1::Scenario& values, ReplayMode mode, const std::vector<std::string>& sets);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_UNREAD_FIELDS_H_
