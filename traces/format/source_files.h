// Sources of foreign bytes: a file, every file of a directory, or every member of an archive (tar.xz, tar.gz,
// zip, ...; libarchive). Archives are streamed and never unpacked to disk. Single files may be compressed
// with gzip, zstd, xz or bzip2, whatever their names are.
//
// One document is in memory at a time, and none may be larger than kDocumentBytesMax.

#ifndef KVTWIN_TRACES_FORMAT_SOURCE_FILES_H_
#define KVTWIN_TRACES_FORMAT_SOURCE_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace kvtwin {

constexpr uint64_t kDocumentBytesMax = uint64_t{128} << 20;

bool is_archive_name(const std::string& path);

// Calls `take(name, bytes)` for each regular file whose name `wanted` accepts; names are base names. A
// directory is read in order of names, an archive in the order of its members.
using WantDocument = std::function<bool(const std::string& name)>;
using TakeDocument = std::function<Result<void>(const std::string& name, std::string_view bytes)>;
Result<void> for_each_document(const std::string& path, const WantDocument& wanted, const TakeDocument& take);

// Calls `take(name, start)` with at most the first `bytes_max` bytes of the file, or of each wanted file of
// the directory (recursively) or archive, until it returns false. Used to recognise formats.
using TakeStart = std::function<bool(const std::string& name, std::string_view start)>;
Result<void> for_each_start(const std::string& path, size_t bytes_max, const WantDocument& wanted,
                            const TakeStart& take);

// The whole file, if it is no larger than kDocumentBytesMax.
Result<std::string> read_document(const std::string& path);

// Calls `take(line_number, line)` for each line that is not blank, without its end (\n or \r\n). A line may
// be at most kDocumentBytesMax long.
using TakeLine = std::function<Result<void>(uint64_t number, std::string_view line)>;
Result<void> for_each_line(const std::string& path, const TakeLine& take);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_SOURCE_FILES_H_
