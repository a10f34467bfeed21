#include "models/catalog/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "models/files/data_folder.h"
#include "models/files/textproto.h"

namespace kvtwin {

std::string default_models_dir() { return data_folder("models"); }

bool is_catalog_path(std::string_view name) {
  return name.find('/') != std::string_view::npos || name.ends_with(".textproto");
}

std::vector<std::string> Catalog::names(const char* kind) const {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/" + kind, error)) {
    if (entry.path().extension() == ".textproto") out.push_back(entry.path().stem().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::string> Catalog::path_of(const char* kind, const std::string& name) const {
  if (is_catalog_path(name)) return name;
  std::vector<std::string> known = names(kind);
  if (std::binary_search(known.begin(), known.end(), name))
    return fmt::format("{}/{}/{}.textproto", dir_, kind, name);
  std::string hint = did_you_mean(name, known);
  if (hint.empty()) hint = fmt::format("known: {}", fmt::join(known, ", "));
  return make_error(std::string(kind), fmt::format("no {} is called \"{}\"", kind, name), hint);
}

namespace {
template <typename Spec>
Result<Spec> load(Result<std::string> path, Result<Spec> (*parse)(std::string_view, const std::string&)) {
  if (!path) return tl::unexpected<Error>(path.error());
  const Result<std::string> text = read_text_file(*path, size_t{1} << 20);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse(*text, *path);
}
}  // namespace

Result<LlmSpec> Catalog::llm(const std::string& name) const {
  return load<LlmSpec>(path_of("llm", name), parse_llm);
}
Result<DeviceSpec> Catalog::device(const std::string& name) const {
  return load<DeviceSpec>(path_of("device", name), parse_device);
}
Result<NodeSpec> Catalog::node(const std::string& name) const {
  const Result<std::string> path = path_of("node", name);
  Result<NodeSpec> node = load<NodeSpec>(path, parse_node);
  if (node && is_catalog_path(node->device) && !std::filesystem::path(node->device).is_absolute()) {
    const std::filesystem::path folder = std::filesystem::path(*path).parent_path();
    node->device = (folder / node->device).lexically_normal().string();
  }
  return node;
}

}  // namespace kvtwin
