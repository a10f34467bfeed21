// The scenarios shipped with kvtwin, which commands take by name.

#ifndef KVTWIN_SCENARIOS_LOAD_SHIPPED_H_
#define KVTWIN_SCENARIOS_LOAD_SHIPPED_H_

#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

// Their folder: $KVTWIN_SCENARIOS, or the folder of this build; "" if there is none.
std::string shipped_scenarios_dir();

// Their names, sorted: paths below that folder without ".textproto", as in "methods/freekv". Scenarios in its
// folder `shipped` are named by their file alone, as in "coding_agents_small".
std::vector<std::string> shipped_scenarios();
// REQUIRES: `name` is one of shipped_scenarios().
std::string path_of_shipped(const std::string& name);

// The path of the scenario `given`: a path, or the name of a shipped scenario. An existing file takes
// precedence. A path that does not exist is returned unchanged, unless it looks like a misspelt name.
Result<std::string> find_scenario(const std::string& given);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_SHIPPED_H_
