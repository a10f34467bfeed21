#include "scenarios/load/inputs.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/prng.h"
#include "engine/base/regular_file.h"
#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
#include "models/serving/server_profile.h"

namespace kvtwin {
namespace fs = std::filesystem;

void Fingerprint::add(std::string_view bytes) {
  uint64_t state = draw({state_, bytes.size()});
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    state = mix64(state ^ word) + 0x9e3779b97f4a7c15u;
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
  state_ = mix64(state ^ rest);
}

Result<void> Fingerprint::add_file(const std::string& path) {
  if (Result<void> ok = check_regular_file(path); !ok) return ok;
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(path, "cannot be opened", "check the name and its permissions");
  std::vector<char> buffer(size_t{1} << 20);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
    add({buffer.data(), static_cast<size_t>(in.gcount())});
  }
  if (in.bad()) return make_error(path, "cannot be read");
  return {};
}

Result<void> Fingerprint::add_path(const std::string& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return add_file(path);
  std::vector<std::string> files;
  for (fs::recursive_directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed)) {
    if (at->is_regular_file(failed)) files.push_back(fs::relative(at->path(), path, failed).generic_string());
  }
  if (failed) return make_error(path, "cannot be listed: " + failed.message());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    add(file);
    if (Result<void> ok = add_file((fs::path(path) / file).string()); !ok) return ok;
  }
  return {};
}

namespace {

// Adds the files of a checkpoint's folder that engines read. Files that were trained or measured on the
// checkpoint may lie in the same folder; they count where a scenario names them.
void add_checkpoint(const std::string& path, std::vector<std::string>* paths) {
  std::vector<std::string> found;
  std::error_code failed;
  for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (name == "config.json" || name.starts_with("model")) found.push_back(at->path().string());
  }
  if (found.empty()) found = {path};  // a single file, or a missing one, which its reader reports
  std::sort(found.begin(), found.end());
  paths->insert(paths->end(), found.begin(), found.end());
}

// A catalog name or a path without its folder; of a .textproto file also without the ending.
std::string without_folder(const std::string& name) {
  const fs::path path(name);
  return path.extension() == ".textproto" ? path.stem().string() : path.filename().string();
}

// Every measured profile that is shipped, by name.
void add_measured(std::vector<std::string>* paths) {
  std::error_code failed;
  std::vector<std::string> found;
  for (fs::directory_iterator at(fs::path(default_models_dir()) / "measured", failed), end;
       !failed && at != end; at.increment(failed)) {
    if (at->path().extension() == ".textproto") found.push_back(at->path().string());
  }
  std::sort(found.begin(), found.end());
  paths->insert(paths->end(), found.begin(), found.end());
}

// The files among the words of a scorer's command: its program, for example.
void add_command(const std::string& command, std::vector<std::string>* paths) {
  std::istringstream words(command);
  for (std::string word; words >> word;) {
    std::erase_if(word, [](char c) { return c == '\'' || c == '"'; });
    std::error_code failed;
    if (fs::is_regular_file(word, failed)) paths->push_back(word);
  }
}

// The kernel tables that a ServerProfile builds on; "": none.
std::string base_of_server_profile(const Scenario& scenario) {
  const std::string path = scenario.file(scenario.values.cost().profile());
  if (!path.ends_with(".textproto")) return "";
  const Result<std::string> text = read_text_file(path);
  if (!text || !is_server_profile(*text)) return "";
  const Result<ServerProfile> profile = parse_server_profile(*text, path);
  return profile && !profile->base.empty() ? (fs::path(path).parent_path() / profile->base).string() : "";
}

}  // namespace

Result<uint64_t> inputs_fingerprint(const Scenario& scenario, PathDigests* read) {
  Fingerprint sum;
  sum.add(KVTWIN_VERSION);
  // Paths are left out: the content of the files counts.
  Scenario nameless = scenario;
  nameless.values.clear_name();
  nameless.values.clear_description();
  nameless.values.mutable_trace()->clear_path();
  nameless.values.mutable_cost()->clear_profile();
  nameless.values.mutable_simulation()->clear_recorded_run();
  nameless.values.mutable_cpu()->clear_checkpoint();
  nameless.values.mutable_cpu()->clear_scorer_weights();
  nameless.values.mutable_model()->set_name(without_folder(nameless.values.model().name()));
  nameless.values.mutable_hardware()->set_node(without_folder(nameless.values.hardware().node()));
  for (v1::EngineKind& kind : *nameless.values.mutable_engines()->mutable_further())
    kind.set_node(without_folder(kind.node()));
  v1::Policies& policies = *nameless.values.mutable_policies();
  policies.mutable_precision_options()->clear_tag_map();
  policies.mutable_partition_options()->clear_profile();
  policies.mutable_budget_options()->clear_profile();
  if (nameless.values.simulation().has_retrieval())
    nameless.values.mutable_simulation()->mutable_retrieval()->clear_profile();
  sum.add(resolved_textproto(nameless));
  std::vector<std::string> paths = {scenario.file(scenario.values.trace().path())};
  const std::string& profile = scenario.values.cost().profile();
  if (!profile.empty()) paths.push_back(scenario.file(profile));
  if (const std::string base = base_of_server_profile(scenario); !base.empty()) paths.push_back(base);
  // A method that the profile lacks is priced by a profile of another GPU (scenarios/app/compose_cost.cc).
  if (profile.ends_with(".textproto")) add_measured(&paths);
  const v1::Policies& named = scenario.values.policies();
  for (const std::string* file :
       {&named.precision_options().tag_map(), &named.partition_options().profile(),
        &named.budget_options().profile(), &scenario.values.simulation().retrieval().profile()}) {
    if (!file->empty()) paths.push_back(scenario.file(*file));
  }
  add_command(named.scorer_options().command(), &paths);
  const std::string recorded = recorded_outcomes_file(scenario);
  if (!recorded.empty()) paths.push_back(recorded);
  const std::string& checkpoint = scenario.values.cpu().checkpoint();
  if (!checkpoint.empty()) add_checkpoint(scenario.file(checkpoint), &paths);
  const std::string& weights = scenario.values.cpu().scorer_weights();
  if (!weights.empty()) paths.push_back(scenario.file(weights));
  // compose() reports a missing catalog entry.
  const Catalog catalog;
  const auto add_entry = [&](const char* kind, const std::string& name) {
    for (std::string& path : catalog.files_of(kind, name)) paths.push_back(std::move(path));
  };
  const auto of_scenario = [&](const std::string& name) {
    return is_catalog_path(name) ? scenario.file(name) : name;
  };
  add_entry("llm", of_scenario(scenario.values.model().name()));
  std::vector<std::string> nodes = {scenario.values.hardware().node()};
  for (const v1::EngineKind& kind : scenario.values.engines().further()) nodes.push_back(kind.node());
  for (const std::string& name : nodes) {
    add_entry("node", of_scenario(name));
    if (const auto node = catalog.node(of_scenario(name))) add_entry("device", node->device);
  }
  PathDigests own;
  if (read == nullptr) read = &own;
  for (const std::string& path : paths) {
    auto known = read->find(path);
    if (known == read->end()) {
      Fingerprint content;
      if (Result<void> ok = content.add_path(path); !ok) return tl::unexpected(ok.error());
      known = read->emplace(path, content.value()).first;
    }
    sum.add({reinterpret_cast<const char*>(&known->second), sizeof known->second});
  }
  return sum.value();
}

}  // namespace kvtwin
