// The version of this build.

#ifndef KVTWIN_SCENARIOS_CLI_VERSION_H_
#define KVTWIN_SCENARIOS_CLI_VERSION_H_

#include <string>

namespace kvtwin {

// Several lines: the version, the commit that the build is made from, and its optional parts.
std::string version_text();

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_VERSION_H_
