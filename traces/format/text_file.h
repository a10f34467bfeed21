// TextFile writes a text file that appears under its name only when it is complete: FILE.part, then a rename.
// Missing folders of its path are made.

#ifndef KVTWIN_TRACES_FORMAT_TEXT_FILE_H_
#define KVTWIN_TRACES_FORMAT_TEXT_FILE_H_

#include <fstream>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace kvtwin {

class TextFile {
 public:
  explicit TextFile(std::string path) : path_(std::move(path)), part_(path_ + ".part") {}
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  Result<void> open();
  Result<void> write(std::string_view text);
  Result<void> commit();
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const std::string part_;
  std::ofstream out_;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_TEXT_FILE_H_
