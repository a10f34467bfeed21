// What this build of kvtwin is.

#ifndef KVTWIN_SCENARIOS_CLI_VERSION_H_
#define KVTWIN_SCENARIOS_CLI_VERSION_H_

#include <string>

namespace kvtwin {

// The version, the commit it was built from, and which optional parts it has; some lines.
std::string version_text();

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_VERSION_H_
