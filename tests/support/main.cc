#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "tests/support/source_dir.h"

namespace kvtwin::testing {
std::string source_dir() { return KVTWIN_SOURCE_DIR; }
}  // namespace kvtwin::testing
