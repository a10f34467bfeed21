// Where the project's sources lie. A function, not a macro: a path on the command line of every compilation
// would keep compilers' caches from being shared between checkouts.

#ifndef KVTWIN_TESTS_SUPPORT_SOURCE_DIR_H_
#define KVTWIN_TESTS_SUPPORT_SOURCE_DIR_H_

#include <string>

namespace kvtwin::testing {

std::string source_dir();

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_SOURCE_DIR_H_
