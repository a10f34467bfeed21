// Finds external test data: $KVTWIN_DATA, or ../shared/data next to the project.

#ifndef KVTWIN_TESTS_UNIT_MODELS_TEST_DATA_H_
#define KVTWIN_TESTS_UNIT_MODELS_TEST_DATA_H_

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/source_dir.h"

inline std::string test_data(const std::string& path) {
  const char* dir = std::getenv("KVTWIN_DATA");
  return (dir != nullptr ? std::string(dir) : kvtwin::testing::source_dir() + "/../shared/data") + "/" + path;
}

inline bool have_test_data(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(test_data(path), error);
}

#endif  // KVTWIN_TESTS_UNIT_MODELS_TEST_DATA_H_
