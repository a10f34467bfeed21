// check_regular_file() rejects pipes, sockets and devices before they are opened. Input files are read twice
// (once for the fingerprint of inputs) and to their end; a pipe yields its bytes once, and a device may have
// no end.

#ifndef KVTWIN_ENGINE_BASE_REGULAR_FILE_H_
#define KVTWIN_ENGINE_BASE_REGULAR_FILE_H_

#include <sys/stat.h>

#include <string>

#include "engine/base/result.h"

namespace kvtwin {

// Fails if `path` is a pipe, a socket or a device. Passes if `path` does not exist: opening it reports that.
inline Result<void> check_regular_file(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0 || S_ISREG(about.st_mode) || S_ISDIR(about.st_mode)) return {};
  const char* const what = S_ISFIFO(about.st_mode)   ? "is a pipe"
                           : S_ISSOCK(about.st_mode) ? "is a socket"
                                                     : "is a device";
  return make_error(path, what, "a regular file: inputs are read more than once");
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_REGULAR_FILE_H_
