// The scenarios that kvtwin came with, which commands take by name.

#ifndef KVTWIN_SCENARIOS_LOAD_SHIPPED_H_
#define KVTWIN_SCENARIOS_LOAD_SHIPPED_H_

#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

// Their folder: $KVTWIN_SCENARIOS, or what this build came with; "" if there is none.
std::string shipped_scenarios_dir();

// Their names, sorted: paths below that folder without ".textproto", as in "methods/freekv"; those in its
// folder `shipped` have their file's name alone, as in "coding_agents_small".
std::vector<std::string> shipped_scenarios();
// REQUIRES: `name` is one of shipped_scenarios().
std::string path_of_shipped(const std::string& name);

// The path of the scenario that `given` means: a path, or the name of a shipped scenario. A file of that name
// comes first. A path that does not exist is returned as it is, unless it looks like a misspelt name.
Result<std::string> find_scenario(const std::string& given);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_SHIPPED_H_
