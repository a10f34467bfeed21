// The root of the source tree. This is a function, not a macro, because a path on every compiler command line
// would keep compiler caches from being shared between checkouts.

#ifndef KVTWIN_TESTS_SUPPORT_SOURCE_DIR_H_
#define KVTWIN_TESTS_SUPPORT_SOURCE_DIR_H_

#include <string>

namespace kvtwin::testing {

std::string source_dir();

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_SOURCE_DIR_H_
