// Foreign files for the importer tests: hand-written ones, and real ones if present.

#ifndef KVTWIN_TESTS_UNIT_SESSIONS_FOREIGN_H_
#define KVTWIN_TESTS_UNIT_SESSIONS_FOREIGN_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/prng.h"
#include "tests/support/source_dir.h"
#include "tests/unit/sessions/collect.h"
#include "traces/importers/import_chat_logs.h"

namespace kvtwin::testing {

// A temporary file with given bytes.
class TempFile {
 public:
  TempFile(const std::string& name, const std::string& bytes)
      : path_((std::filesystem::temp_directory_path() / ("kvtwin_more_" + name)).string()) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

using Import = Result<void> (*)(const std::string&, const ImportOptions&, TraceSink*);

inline std::string error_of(Import import, const std::string& name, const std::string& bytes) {
  const TempFile file(name, bytes);
  Collect sink;
  return problem(import(file.path(), {}, &sink));
}

// Truncates and changes `good` in many ways. Each result must be read, or refused by an Error with a
// message. Returns the number of refusals.
inline int hostile(Import import, const std::string& name, const std::string& good) {
  int refused = 0;
  const auto feed = [&](const std::string& bytes) {
    const TempFile file(name, bytes);
    Collect sink;
    const Result<void> result = import(file.path(), {}, &sink);
    if (!result) ++refused;
    return result || !result.error().what.empty();
  };
  bool all = true;
  for (size_t cut = 0; cut < good.size(); cut += 1 + good.size() / 150)
    all = feed(good.substr(0, cut)) && all;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    std::string bytes = good;
    for (uint64_t i = 0; i <= seed % 4; ++i) {
      const uint64_t bits = draw({seed, i});
      bytes[bits % bytes.size()] = "0123456789{}[]\",:-\\ntfe\0\xff"[(bits >> 40) % 25];
    }
    all = feed(bytes) && all;
  }
  // Numbers that do not fit, and wrong types.
  for (const char* replacement :
       {"-1", "99999999999999999999", "1e308", "null", "\"x\"", "[]", "{}", "0", "4294967295"}) {
    for (size_t at = 0; (at = good.find_first_of("0123456789", at)) != std::string::npos;) {
      const size_t end = good.find_first_not_of("0123456789.", at);
      if (good[at - 1] == ':') all = feed(good.substr(0, at) + replacement + good.substr(end)) && all;
      at = end;
      if (at == std::string::npos) break;
    }
  }
  all = feed(std::string(100'000, '[')) && all;
  all = feed(std::string(5'000, '\xff')) && all;
  return all ? refused : -1;
}

// The path of a file of the shared data sets; empty if absent.
inline std::string data_file(const std::string& relative) {
  const char* const given = std::getenv("KVTWIN_DATA");
  const std::string root = given != nullptr ? given : kvtwin::testing::source_dir() + "/../shared/data";
  const std::string path = root + "/" + relative;
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_SESSIONS_FOREIGN_H_
