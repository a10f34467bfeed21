// Bad input: each case of bad_inputs.txt is refused with exit status 2 and its message, which says where it
// is wrong, what with the value, and what would be right.

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

struct BadInput {
  std::string words, message;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// Writes the files into `folder` and returns the cases.
std::vector<BadInput> read_cases(const Folder& folder) {
  std::ifstream table(source_dir() + "/tests/cli/bad_inputs.txt");
  std::vector<BadInput> out;
  for (std::string line; std::getline(table, line);) {
    if (line.starts_with("file ")) {
      const size_t end = line.find(' ', 5);
      const std::string name = line.substr(5, end - 5);
      std::string content = nlohmann::json::parse(line.substr(end + 1)).get<std::string>();
      content = replaced(replaced(content, "{E9}", "\xe9"), "{8B}", "\x8b");
      folder.write(name, content);
      continue;
    }
    line = replaced(replaced(line, "{folder}", folder.path()), "{source}", source_dir());
    if (line.starts_with("$ ")) {
      out.push_back({line.substr(2), ""});
    } else if (line.starts_with("  ") && !out.empty()) {
      out.back().message = line.substr(2);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("bad input: every case is refused with its message and status 2, and nothing is written") {
  const Folder folder;
  const std::vector<BadInput> cases = read_cases(folder);
  REQUIRE(cases.size() >= 390);
  for (const BadInput& row : cases) {
    CAPTURE(row.words);
    CHECK(!row.message.empty());
    const Outcome outcome = run_in_shell(folder, row.words);
    check_refused(outcome, row.message);
    CHECK(outcome.out.empty());
    for (const char* const name : {"m", "o", "p", "res", "w", "x", "x.part"}) CHECK(!folder.has(name));
  }
}
