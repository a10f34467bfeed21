#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "models/catalog/catalog.h"
#include "models/catalog/device_report.h"
#include "scenarios/cli/cli.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

struct NewOptions {
  std::string name, base, out = ".";
};

// Writes a file that must not exist yet.
Result<void> write_new(const fs::path& path, const std::string& text) {
  std::error_code error;
  if (fs::exists(path, error))
    return make_error(path.string(), "is there already", "choose another name, or remove it");
  return write_text(path.string(), text);
}

// The node of the catalog with the base's name, or else one that any GPU can start from.
std::string base_node(const Catalog& catalog, const std::string& base) {
  const Result<std::string> path = catalog.path_of("node", base);
  return path && !is_catalog_path(base) ? fs::path(*path).stem().string() : "h100";
}

int run_new(const NewOptions& options) {
  if (Result<void> ok = check_catalog_name(options.name, "NAME"); !ok) return complain(ok.error());
  const Catalog catalog;
  std::string base = options.base;
  // The new file names the base as seen from its own folder.
  if (is_catalog_path(base)) base = fs::absolute(base).lexically_normal().string();
  const Result<std::string> device = new_device_text(catalog, options.name, base);
  if (!device) return complain(device.error());
  const std::string file = options.name + ".textproto";
  const Result<std::string> node =
      new_node_text(catalog, options.name, file, base_node(catalog, options.base));
  if (!node) return complain(node.error());
  const fs::path folder = options.out;
  if (folder.extension() == ".textproto")
    return complain(Error{"--out=" + options.out, "is a folder, and two files are written into it",
                          "as in --out=gpus; the files are NAME.textproto and NAME-node.textproto"});
  const fs::path device_path = folder / file, node_path = folder / (options.name + "-node.textproto");
  std::error_code error;
  for (const fs::path& path : {device_path, node_path}) {
    if (fs::exists(path, error)) return complain(write_new(path, "").error());
  }
  fs::create_directories(folder, error);
  if (Result<void> ok = write_new(device_path, *device); !ok) return complain(ok.error(), kExitEnvironment);
  if (Result<void> ok = write_new(node_path, *node); !ok) return complain(ok.error(), kExitEnvironment);
  fmt::print("{}: the GPU, as {} until it states figures of its own\n", device_path.string(), options.base);
  fmt::print("{}: a node with one of them\n", node_path.string());
  fmt::print("check them: kvtwin device check {}\n", device_path.string());
  fmt::print("use them:   kvtwin run SCENARIO --set=hardware.node={}\n", node_path.string());
  return kExitDone;
}

int run_check(const std::string& name) {
  const Result<std::string> text = device_report(Catalog(), name);
  if (!text) return complain(text.error());
  fmt::print("{}", *text);
  return kExitDone;
}

}  // namespace

void add_device_command(CLI::App& app, int* status) {
  CLI::App* device = app.add_subcommand("device");
  device->require_subcommand(1);

  auto made = std::make_shared<NewOptions>();
  CLI::App* cmd = device->add_subcommand("new");
  cmd->add_option("name", made->name)->required();
  cmd->add_option("--base", made->base)->required();
  cmd->add_option("--out", made->out);
  cmd->callback([made, status] { *status = run_new(*made); });

  auto checked = std::make_shared<std::string>();
  cmd = device->add_subcommand("check");
  cmd->add_option("file", *checked)->required();
  cmd->callback([checked, status] { *status = run_check(*checked); });
}

}  // namespace kvtwin
