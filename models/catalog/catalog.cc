#include "models/catalog/catalog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "models/catalog/base_file.h"
#include "models/files/data_folder.h"
#include "models/files/textproto.h"
#include "traces/proto/model.pb.h"

namespace kvtwin {
namespace {
constexpr size_t kFileBytesMax = size_t{1} << 20;  // of a catalog file
}

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
  const std::vector<std::string> known = names(kind);
  const auto same = [&](const std::string& other) {
    return std::equal(name.begin(), name.end(), other.begin(), other.end(),
                      [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
  };
  auto found = std::find(known.begin(), known.end(), name);
  if (found == known.end()) found = std::find_if(known.begin(), known.end(), same);
  if (found != known.end()) return fmt::format("{}/{}/{}.textproto", dir_, kind, *found);
  std::string hint = did_you_mean(name, known);
  if (hint.empty()) hint = fmt::format("known: {}", fmt::join(known, ", "));
  return make_error(std::string(kind), fmt::format("no {} is called \"{}\"", kind, name), hint);
}

Result<void> Catalog::parse(const char* kind, std::string_view text, const std::string& where,
                            google::protobuf::Message* message) const {
  return parse_with_base(
      text, where, [&](const std::string& name) { return path_of(kind, name); }, message);
}

std::vector<std::string> Catalog::files_of(const char* kind, const std::string& name) const {
  const Result<std::string> path = path_of(kind, name);
  if (!path) return {};
  const Result<std::string> text = read_text_file(*path, kFileBytesMax);
  if (!text) return {};
  std::vector<std::string> files = {*path};
  v1::DeviceSpec device;
  v1::NodeSpec node;
  const bool of_node = std::string_view(kind) == "node";
  if (of_node || std::string_view(kind) == "device") {
    // An error of the text is reported where the figures are needed.
    (void)parse_with_base(
        *text, *path, [&](const std::string& base) { return path_of(kind, base); },
        of_node ? static_cast<google::protobuf::Message*>(&node) : &device, &files);
  }
  return files;
}

Result<void> check_catalog_name(const std::string& name, const std::string& where) {
  const auto right = [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; };
  if (!name.empty() && name.size() <= 100 && std::isalnum(static_cast<unsigned char>(name[0])) &&
      std::all_of(name.begin(), name.end(), right) && !is_catalog_path(name))
    return {};
  return make_error(where, fmt::format("\"{}\" is no name", name.substr(0, 100)),
                    "letters, digits, '.', '_' and '-', as in my-model-8b; --out is the path of the file");
}

Result<LlmSpec> Catalog::llm(const std::string& name) const {
  const Result<std::string> path = path_of("llm", name);
  if (!path) return tl::unexpected<Error>(path.error());
  if (path->ends_with(".json"))
    return make_error(*path, "is no model of kvtwin",
                      fmt::format("import it: kvtwin model import {} --out=NAME.textproto", *path));
  const Result<std::string> text = read_text_file(*path, kFileBytesMax);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse_llm(*text, *path);
}

Result<DeviceSpec> Catalog::device(const std::string& name) const {
  const Result<std::string> path = path_of("device", name);
  if (!path) return tl::unexpected<Error>(path.error());
  const Result<std::string> text = read_text_file(*path, kFileBytesMax);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse_device(*text, *path, *this);
}

Result<NodeSpec> Catalog::node(const std::string& name) const {
  const Result<std::string> path = path_of("node", name);
  if (!path) return tl::unexpected<Error>(path.error());
  const Result<std::string> text = read_text_file(*path, kFileBytesMax);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse_node(*text, *path, *this);
}

}  // namespace kvtwin
