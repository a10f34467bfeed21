// Events and commands in the words of the decision tables (table.h).

#ifndef KVTWIN_TESTS_SUPPORT_DESCRIBE_H_
#define KVTWIN_TESTS_SUPPORT_DESCRIBE_H_

#include <string>

#include "engine/base/commands.h"
#include "engine/base/events.h"

namespace kvtwin::testing {

std::string describe(const Event& event);
std::string describe(const Command& command);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_DESCRIBE_H_
