#include <algorithm>
#include <string_view>

#include "scenarios/cli/cli.h"

namespace kvtwin {

extern const char kCommandLinePage[];  // docs/reference/cli.md

std::vector<std::string> usual_words(std::vector<std::string> words) {
  std::replace(words.begin(), words.end(), std::string("-h"), std::string("--help"));
  if (words.empty()) return words;
  if (words.front() == "version" || words.front() == "-V") words.front() = "--version";
  if (words.front() == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  return words;
}

std::string help_text(const std::string& path) {
  const std::string_view page = kCommandLinePage;
  const std::string heading = "# " + path + "\n\n```text\n";
  const size_t begin = page.find(heading) + heading.size();
  return std::string(page.substr(begin, page.find("```\n", begin) - begin));
}

}  // namespace kvtwin
