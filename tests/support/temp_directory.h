// A directory that nobody else has, below the system's own for such.

#ifndef KVTWIN_TESTS_SUPPORT_TEMP_DIRECTORY_H_
#define KVTWIN_TESTS_SUPPORT_TEMP_DIRECTORY_H_

#include <stdlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvtwin::testing {

// Made now, and removed by whoever asked for it. `kind` is a part of its name: kvtwin_KIND_...
inline std::filesystem::path make_temp_directory(const std::string& kind) {
  const std::string drawn(6, 'X');  // mkdtemp() puts letters there
  std::string name = (std::filesystem::temp_directory_path() / ("kvtwin_" + kind + "_" + drawn)).string();
  if (mkdtemp(name.data()) == nullptr) {
    std::perror(name.c_str());
    std::abort();
  }
  return name;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_TEMP_DIRECTORY_H_
