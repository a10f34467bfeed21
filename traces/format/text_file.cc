#include "traces/format/text_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace kvtwin {

TextFile::~TextFile() {
  if (!out_.is_open()) return;
  out_.close();
  std::error_code ignored;
  std::filesystem::remove(part_, ignored);
}

Result<void> TextFile::open() {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(path_, error)) return make_error(path_, "is a folder", "the name of a file to write");
  const fs::path folder = fs::path(path_).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (!folder.empty() && error)
    return make_error(path_, fmt::format("its folder cannot be made: {}", error.message()));
  out_.open(part_, std::ios::binary | std::ios::trunc);
  if (out_) return {};
  return make_error(part_, fmt::format("cannot be written: {}", std::strerror(errno)));
}

Result<void> TextFile::write(std::string_view text) {
  out_.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (out_) return {};
  return make_error(part_, fmt::format("writing failed: {}", std::strerror(errno)));
}

Result<void> TextFile::commit() {
  out_.close();
  std::error_code error;
  if (!out_.fail()) std::filesystem::rename(part_, path_, error);
  if (!out_.fail() && !error) return {};
  std::error_code ignored;
  std::filesystem::remove(part_, ignored);
  return make_error(path_, fmt::format("cannot be written: {}", error ? error.message() : "closing failed"));
}

}  // namespace kvtwin
