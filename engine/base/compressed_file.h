// check_not_compressed() rejects compressed input files and names the compression. Otherwise the parser
// would report only an invalid first byte.

#ifndef KVTWIN_ENGINE_BASE_COMPRESSED_FILE_H_
#define KVTWIN_ENGINE_BASE_COMPRESSED_FILE_H_

#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace kvtwin {

// Fails if `start`, the first bytes of the file at `path`, are the signature of a compressed format. No
// uncompressed format that kvtwin reads starts with one of them.
inline Result<void> check_not_compressed(const std::string& path, std::string_view start) {
  struct Compression {
    std::string_view first_bytes;
    const char* what;
    const char* hint;
  };
  constexpr Compression kKnown[] = {
      {{"\x1f\x8b", 2}, "is gzip-compressed", "gunzip it first"},
      {{"\xfd"
        "7zXZ\0",
        6},
       "is xz-compressed",
       "unxz it first"},
      {{"\x28\xb5\x2f\xfd", 4}, "is zstd-compressed", "unzstd it first"},
      {{"BZh", 3}, "is bzip2-compressed", "bunzip2 it first"},
  };
  for (const Compression& one : kKnown) {
    if (start.starts_with(one.first_bytes)) return make_error(path, one.what, one.hint);
  }
  return {};
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_COMPRESSED_FILE_H_
