// Bad input: each case of bad_inputs.txt is refused with exit status 2 and its message, which says where it
// is wrong, what with the value, and what would be right.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/folder.h"

namespace fs = std::filesystem;
using kvtwin::testing::Folder;

namespace {

struct BadInput {
  std::string words, message;
};

// Writes the files into `folder` and returns the cases.
std::vector<BadInput> read_cases(const Folder& folder) {
  std::ifstream table(KVTWIN_SOURCE_DIR "/tests/cli/bad_inputs.txt");
  std::vector<BadInput> out;
  for (std::string line; std::getline(table, line);) {
    if (line.starts_with("$ ")) {
      out.push_back({line.substr(2), ""});
    } else if (line.starts_with("  ") && !out.empty()) {
      out.back().message = line.substr(2);
    } else if (line.starts_with("file ")) {
      const size_t end = line.find(' ', 5);
      const std::string name = folder.file(line.substr(5, end - 5));
      std::string content = nlohmann::json::parse(line.substr(end + 1)).get<std::string>();
      if (const size_t at = content.find("{E9}"); at != std::string::npos) content.replace(at, 4, "\xe9");
      fs::create_directories(fs::path(name).parent_path());
      std::ofstream(name) << content;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("bad input: every case is refused with its message and status 2") {
  const Folder folder;
  const std::vector<BadInput> cases = read_cases(folder);
  REQUIRE(cases.size() >= 140);
  const std::string err = folder.file("stderr");
  for (const BadInput& row : cases) {
    CAPTURE(row.words);
    const std::string command = fmt::format("cd '{}' && timeout 120 '{}' {} >/dev/null 2>'{}'", folder.path(),
                                            KVTWIN_PROGRAM, row.words, err);
    const int status = std::system(command.c_str());
    const std::string said = Folder::read_any(err);
    CAPTURE(said);
    CHECK(WEXITSTATUS(status) == 2);
    CHECK(!row.message.empty());
    CHECK(said.find(row.message) != std::string::npos);
  }
}
