#include "scenarios/load/shipped.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "models/files/data_folder.h"
#include "models/files/textproto.h"

namespace kvtwin {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kEnding = ".textproto";
constexpr std::string_view kPlain = "shipped/";  // its scenarios are named by their file alone

std::string without_ending(std::string name) {
  if (name.ends_with(kEnding)) name.resize(name.size() - kEnding.size());
  return name;
}

}  // namespace

std::string shipped_scenarios_dir() {
  const fs::path dir = data_folder("scenarios");
  std::error_code failed;
  // A build folder links to the scenarios, whose relative paths lead out of the link's target.
  const fs::path real = fs::canonical(dir, failed);
  return (failed ? dir : real).string();
}

std::vector<std::string> shipped_scenarios() {
  std::vector<std::string> names;
  std::error_code failed;
  const fs::path dir = shipped_scenarios_dir();
  for (fs::recursive_directory_iterator at(dir, failed), end; !failed && at != end; at.increment(failed)) {
    std::string name = at->path().lexically_relative(dir).generic_string();
    if (name.starts_with(kPlain)) name.erase(0, kPlain.size());
    if (name.ends_with(kEnding)) names.push_back(without_ending(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string path_of_shipped(const std::string& name) {
  const fs::path dir = shipped_scenarios_dir(), file = name + std::string(kEnding);
  std::error_code failed;
  const fs::path plain = dir / kPlain / file;
  return (fs::exists(plain, failed) ? plain : dir / file).string();
}

Result<std::string> find_scenario(const std::string& given) {
  std::error_code failed;
  if (given.empty() || (fs::exists(given, failed) && !fs::is_directory(given, failed))) return given;
  const std::vector<std::string> known = shipped_scenarios();
  if (std::binary_search(known.begin(), known.end(), given)) return path_of_shipped(given);
  if (fs::is_directory(given, failed)) return given;
  std::string name = without_ending(given);
  if (name.starts_with("scenarios/")) name.erase(0, std::string_view("scenarios/").size());
  if (name.starts_with(kPlain)) name.erase(0, kPlain.size());
  const std::string close = did_you_mean(name, known);
  if (given.ends_with(kEnding))
    return make_error(given, "cannot be opened",
                      close.empty() ? "check the name and its permissions" : close);
  if (known.empty())
    return make_error(given,
                      fmt::format("is no file, and no scenarios are shipped in {}", shipped_scenarios_dir()),
                      "./dev install copies the tool with its data; or KVTWIN_SCENARIOS=FOLDER");
  return make_error(given, "is neither a file nor a shipped scenario",
                    close.empty() ? "kvtwin list scenarios prints their names" : close);
}

}  // namespace kvtwin
