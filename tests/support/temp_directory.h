// Creates unique directories below the system's temporary directory.

#ifndef KVTWIN_TESTS_SUPPORT_TEMP_DIRECTORY_H_
#define KVTWIN_TESTS_SUPPORT_TEMP_DIRECTORY_H_

#include <stdlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvtwin::testing {

// Creates kvtwin_KIND_XXXXXX, with `kind` for KIND and letters drawn by mkdtemp(). The caller removes it.
inline std::filesystem::path make_temp_directory(const std::string& kind) {
  const std::string drawn(6, 'X');  // mkdtemp() replaces these
  std::string name = (std::filesystem::temp_directory_path() / ("kvtwin_" + kind + "_" + drawn)).string();
  if (mkdtemp(name.data()) == nullptr) {
    std::perror(name.c_str());
    std::abort();
  }
  return name;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_TEMP_DIRECTORY_H_
