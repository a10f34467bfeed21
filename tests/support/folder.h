// A temporary directory that is removed with its Folder object.

#ifndef KVTWIN_TESTS_SUPPORT_FOLDER_H_
#define KVTWIN_TESTS_SUPPORT_FOLDER_H_

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/temp_directory.h"

namespace kvtwin::testing {

class Folder {
 public:
  Folder() : path_(make_temp_directory("test")) {}
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return file(name);
  }
  std::string read(const std::string& name) const { return read_any(path_ / name); }
  static std::string read_any(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool has(const std::string& name) const { return std::filesystem::exists(path_ / name); }
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_FOLDER_H_
