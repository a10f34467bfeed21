#include "traces/format/source_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include "engine/base/compressed_file.h"
#include "engine/base/regular_file.h"

#if KVTWIN_HAVE_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

tl::unexpected<Error> too_large(const std::string& path) {
  return make_error(path, fmt::format("more than {} MiB", kDocumentBytesMax >> 20), "split it");
}

#if KVTWIN_HAVE_ARCHIVE

struct FileCloser {
  void operator()(archive* a) const { archive_read_free(a); }
};

tl::unexpected<Error> archive_error(const std::string& path, archive* reader) {
  const char* const text = archive_error_string(reader);
  return make_error(
      path, fmt::format("cannot be read as an archive: {}", text != nullptr ? text : "unknown reason"),
      "tar.xz, tar.gz, tar.zst, tar or zip");
}

// A whole member, which must not be larger than kDocumentBytesMax; or only its first `start_max` bytes.
Result<std::string> read_member(const std::string& path, archive* reader, size_t start_max = SIZE_MAX) {
  std::string bytes;
  const void* block = nullptr;
  size_t size = 0;
  la_int64_t offset = 0;
  for (int status; (status = archive_read_data_block(reader, &block, &size, &offset)) != ARCHIVE_EOF;) {
    if (status < ARCHIVE_WARN) return archive_error(path, reader);
    // A hole of a sparse member reads as zeros, as from disk; check the limit first.
    const uint64_t end = static_cast<uint64_t>(offset) + size;
    if (offset >= 0 && end > start_max) {
      bytes.resize(std::min(static_cast<size_t>(offset), start_max));
      return bytes.append(static_cast<const char*>(block), std::min(size, start_max - bytes.size()));
    }
    if (offset < 0 || end > kDocumentBytesMax) return too_large(path);
    bytes.resize(static_cast<size_t>(offset));
    bytes.append(static_cast<const char*>(block), size);
  }
  return bytes;
}

// `visit(name, reader)` may read the member; false ends the walk.
using VisitMember = std::function<Result<bool>(const std::string& name, archive* reader)>;
Result<void> for_each_wanted(const std::string& path, const WantDocument& wanted, const VisitMember& visit) {
  const std::unique_ptr<archive, FileCloser> reader(archive_read_new());
  archive_read_support_filter_all(reader.get());
  archive_read_support_format_all(reader.get());
  if (archive_read_open_filename(reader.get(), path.c_str(), 1 << 16) != ARCHIVE_OK) {
    return archive_error(path, reader.get());
  }
  archive_entry* entry = nullptr;
  for (int status; (status = archive_read_next_header(reader.get(), &entry)) != ARCHIVE_EOF;) {
    if (status < ARCHIVE_WARN) return archive_error(path, reader.get());
    const char* const full = archive_entry_pathname(entry);
    if (full == nullptr || archive_entry_filetype(entry) != AE_IFREG) continue;
    const std::string name = fs::path(full).filename().string();
    if (!wanted(name)) continue;
    const Result<bool> more = visit(name, reader.get());
    if (!more) return tl::unexpected(more.error());
    if (!*more) break;
  }
  return {};
}

Result<void> for_each_member(const std::string& path, const WantDocument& wanted, const TakeDocument& take) {
  return for_each_wanted(path, wanted, [&](const std::string& name, archive* reader) -> Result<bool> {
    const Result<std::string> bytes = read_member(path + ":" + name, reader);
    if (!bytes) return tl::unexpected(bytes.error());
    if (auto good = take(name, *bytes); !good) return tl::unexpected(good.error());
    return true;
  });
}

Result<void> for_each_member_start(const std::string& path, size_t bytes_max, const WantDocument& wanted,
                                   const TakeStart& take) {
  return for_each_wanted(path, wanted, [&](const std::string& name, archive* reader) -> Result<bool> {
    const Result<std::string> bytes = read_member(path + ":" + name, reader, bytes_max);
    if (!bytes) return tl::unexpected(bytes.error());
    return take(name, *bytes);
  });
}

// A compressed file as one member without a name.
class Decompressed {
 public:
  explicit Decompressed(std::string path) : path_(std::move(path)), reader_(archive_read_new()) {
    archive_read_support_filter_all(reader_.get());
    archive_read_support_format_raw(reader_.get());
  }
  Result<void> open() {
    archive_entry* entry = nullptr;
    if (archive_read_open_filename(reader_.get(), path_.c_str(), 1 << 16) != ARCHIVE_OK ||
        archive_read_next_header(reader_.get(), &entry) < ARCHIVE_WARN)
      return broken();
    return {};
  }
  // False if only the first bytes are those of a compressed file: libarchive would return them as they are.
  bool recognised() const { return archive_filter_count(reader_.get()) > 1; }
  // 0 at the end.
  Result<size_t> read(char* to, size_t size) {
    const la_ssize_t count = archive_read_data(reader_.get(), to, size);
    if (count < 0) return broken();
    return static_cast<size_t>(count);
  }

 private:
  tl::unexpected<Error> broken() const {
    const char* const text = archive_error_string(reader_.get());
    return make_error(path_, fmt::format("cannot be decompressed: {}", text != nullptr ? text : "no reason"),
                      "a whole .gz, .zst, .xz or .bz2 file");
  }

  const std::string path_;
  const std::unique_ptr<archive, FileCloser> reader_;
};

#else

// Without libarchive, opening fails with what to do.
class Decompressed {
 public:
  explicit Decompressed(std::string path) : path_(std::move(path)) {}
  Result<void> open() {
    std::ifstream in(path_, std::ios::binary);
    std::string start(8, '\0');
    in.read(start.data(), static_cast<std::streamsize>(start.size()));
    return check_not_compressed(path_, start);
  }
  bool recognised() const { return true; }
  Result<size_t> read(char*, size_t) { return size_t{0}; }

 private:
  const std::string path_;
};

tl::unexpected<Error> no_archives(const std::string& path) {
  return make_error(path, "this kvtwin was built without libarchive", "unpack it and give the directory");
}
Result<void> for_each_member(const std::string& path, const WantDocument&, const TakeDocument&) {
  return no_archives(path);
}
Result<void> for_each_member_start(const std::string& path, size_t, const WantDocument&, const TakeStart&) {
  return no_archives(path);
}

#endif

// The bytes of a regular file, decompressed if its first bytes are those of a compressed format.
class FileBytes {
 public:
  explicit FileBytes(std::string path) : path_(std::move(path)) {}

  Result<void> open() {
    if (Result<void> ok = check_regular_file(path_); !ok) return ok;
    in_.open(path_, std::ios::binary);
    if (!in_) return make_error(path_, fmt::format("cannot be read: {}", std::strerror(errno)));
    std::string start(8, '\0');
    in_.read(start.data(), static_cast<std::streamsize>(start.size()));
    start.resize(static_cast<size_t>(in_.gcount()));
    if (Result<void> plain = check_not_compressed(path_, start); !plain) {
      decompressed_.emplace(path_);
      Result<void> opened = decompressed_->open();
      return opened && !decompressed_->recognised() ? plain : opened;
    }
    in_.clear();
    in_.seekg(0);
    return {};
  }
  // Less than `size` only at the end.
  Result<size_t> read(char* to, size_t size) {
    size_t got = 0;
    while (got < size) {
      const Result<size_t> more = some(to + got, size - got);
      if (!more) return more;
      if (*more == 0) break;
      got += *more;
    }
    return got;
  }

 private:
  Result<size_t> some(char* to, size_t size) {
    if (decompressed_) return decompressed_->read(to, size);
    in_.read(to, static_cast<std::streamsize>(size));
    if (in_.bad()) return make_error(path_, fmt::format("reading failed: {}", std::strerror(errno)));
    return static_cast<size_t>(in_.gcount());
  }

  const std::string path_;
  std::ifstream in_;
  std::optional<Decompressed> decompressed_;
};

Result<void> for_each_file_in(const std::string& path, const WantDocument& wanted, const TakeDocument& take) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (it->is_regular_file(ignored) && wanted(name)) names.push_back(name);
  }
  if (error) return make_error(path, fmt::format("cannot be listed: {}", error.message()));
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const Result<std::string> bytes = read_document((fs::path(path) / name).string());
    if (!bytes) return tl::unexpected(bytes.error());
    if (auto good = take(name, *bytes); !good) return good;
  }
  return {};
}

Result<std::string> start_of_file(const std::string& path, size_t bytes_max) {
  FileBytes file(path);
  if (Result<void> ok = file.open(); !ok) return tl::unexpected<Error>(ok.error());
  std::string start(bytes_max, '\0');
  const Result<size_t> got = file.read(start.data(), start.size());
  if (!got) return tl::unexpected<Error>(got.error());
  start.resize(*got);
  return start;
}

// Regular files of a directory, recursively, in order of names.
Result<std::vector<std::string>> files_below(const std::string& path, const WantDocument& wanted) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && wanted(it->path().filename().string()))
      files.push_back(it->path().string());
  }
  if (error) return make_error(path, fmt::format("cannot be listed: {}", error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

bool is_archive_name(const std::string& path) {
  for (const char* const ending :
       {".tar.xz", ".txz", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar", ".zip"}) {
    if (path.ends_with(ending)) return true;
  }
  return false;
}

Result<void> for_each_document(const std::string& path, const WantDocument& wanted,
                               const TakeDocument& take) {
  std::error_code error;
  if (fs::is_directory(path, error)) return for_each_file_in(path, wanted, take);
  if (Result<void> ok = check_regular_file(path); !ok) return ok;
  if (is_archive_name(path)) return for_each_member(path, wanted, take);
  const Result<std::string> bytes = read_document(path);
  if (!bytes) return tl::unexpected(bytes.error());
  return take(fs::path(path).filename().string(), *bytes);
}

Result<void> for_each_start(const std::string& path, size_t bytes_max, const WantDocument& wanted,
                            const TakeStart& take) {
  std::error_code error;
  if (Result<void> ok = check_regular_file(path); !ok) return ok;
  if (!fs::is_directory(path, error) && is_archive_name(path)) {
    return for_each_member_start(path, bytes_max, wanted, take);
  }
  std::vector<std::string> files = {path};
  if (fs::is_directory(path, error)) {
    auto below = files_below(path, wanted);
    if (!below) return tl::unexpected(below.error());
    files = std::move(*below);
  }
  for (const std::string& file : files) {
    const Result<std::string> start = start_of_file(file, bytes_max);
    if (!start) return tl::unexpected(start.error());
    if (!take(fs::path(file).filename().string(), *start)) break;
  }
  return {};
}

Result<std::string> read_document(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return make_error(path, "is a directory", "a file");
  FileBytes file(path);
  if (Result<void> ok = file.open(); !ok) return tl::unexpected<Error>(ok.error());
  const uintmax_t size = fs::file_size(path, error);
  if (!error && size > kDocumentBytesMax) return too_large(path);
  std::string bytes;
  constexpr size_t kPiece = 1 << 20;
  for (;;) {
    const size_t before = bytes.size();
    if (before > kDocumentBytesMax) return too_large(path);
    bytes.resize(before + kPiece);
    const Result<size_t> got = file.read(bytes.data() + before, kPiece);
    if (!got) return tl::unexpected<Error>(got.error());
    bytes.resize(before + *got);
    if (*got < kPiece) return bytes;
  }
}

Result<void> for_each_line(const std::string& path, const TakeLine& take) {
  std::error_code error;
  if (fs::is_directory(path, error)) return make_error(path, "is a directory", "a file");
  FileBytes file(path);
  if (Result<void> ok = file.open(); !ok) return ok;
  std::vector<char> piece(1 << 16);
  std::string line;
  uint64_t number = 1;
  const auto give = [&]() -> Result<void> {
    std::string_view text = line;
    if (text.ends_with('\r')) text.remove_suffix(1);
    const bool blank = text.find_first_not_of(" \t") == std::string_view::npos;
    Result<void> good = blank ? Result<void>{} : take(number, text);
    ++number;
    line.clear();
    return good;
  };
  for (;;) {
    const Result<size_t> got = file.read(piece.data(), piece.size());
    if (!got) return tl::unexpected<Error>(got.error());
    if (*got == 0) break;
    std::string_view rest(piece.data(), *got);
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      line.append(rest.substr(0, end));
      if (auto good = give(); !good) return good;
    }
    line.append(rest);
    if (line.size() > kDocumentBytesMax) return too_large(fmt::format("{}:{}", path, number));
  }
  return line.empty() ? Result<void>{} : give();
}

}  // namespace kvtwin
