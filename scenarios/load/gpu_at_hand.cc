#include "scenarios/load/gpu_at_hand.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "models/catalog/catalog.h"
#include "models/cost_tables/derived_device.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

std::string first_line_of(const char* command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command, "r"), &pclose);
  char line[256] = {};
  if (!pipe || std::fgets(line, sizeof line, pipe.get()) == nullptr) return "";
  std::string out(line);
  while (!out.empty() && (out.back() == '\n' || out.back() == ' ')) out.pop_back();
  return out;
}

Result<void> resolve_node(v1::Hardware* hardware) {
  const std::string gpu = gpu_at_hand();
  std::string node = gpu.empty() ? "" : node_of_gpu(gpu);
  if (node.empty()) node = hardware->otherwise();
  if (node.empty()) {
    const std::string hint = "name one, as in --set=hardware.node=h100 (kvtwin list nodes)";
    if (gpu.empty())
      return make_error("hardware.node", "is \"this\", and nvidia-smi finds no GPU here", hint);
    return make_error("hardware.node",
                      fmt::format("is \"this\", and no node of the catalog has the GPU \"{}\"", gpu), hint);
  }
  hardware->set_node(node);
  return {};
}

// The nearest profile of another GPU or model: compose derives prices from it (derived_device.h).
std::optional<std::string> nearest(const fs::path& folder, const NodeSpec& node, const std::string& model) {
  const Catalog catalog;
  const Result<DeviceSpec> device = catalog.device(node.device);
  const Result<LlmSpec> llm = catalog.llm(model);
  if (!device || !llm) return {};
  return nearest_profile(folder.string(), {*llm, *device}, catalog);
}

Result<void> resolve_profile(const std::string& node_name, const std::string& model, v1::Cost* cost) {
  const Result<NodeSpec> node = Catalog().node(node_name);
  if (!node) return tl::unexpected<Error>(node.error());
  const fs::path folder = fs::path(default_models_dir()) / "measured";
  fs::path path = folder / (node->device + ".textproto");
  std::error_code ignored;
  const bool there = fs::exists(path, ignored);
  const Result<MeasuredDevice> own = load_measured_device(path.string());
  const bool right =
      there && (!own || own->model == model);  // of a broken file, its reader says what is wrong
  const std::optional<std::string> other =
      right ? std::optional<std::string>() : nearest(folder, *node, model);
  if (other) path = *other;
  if (!there && !other) {
    cost->clear_profile();  // so that nothing else looks for a file of that name
    return make_error(
        "cost.profile",
        fmt::format("is \"this\", and {} has no measured profile of {}, nor of another GPU with as many SMs "
                    "from which {} on it could be derived",
                    folder.string(), node->device, model),
        fmt::format("make one on that GPU: kvtwin calibrate device --out={}; or price by the roofline: "
                    "--set=cost.profile=",
                    path.string()));
  }
  cost->set_profile(fs::absolute(path, ignored).lexically_normal().string());
  return {};
}

}  // namespace

std::string gpu_at_hand() {
  if (const char* set = std::getenv(kGpuVariable); set != nullptr && *set != '\0')
    return std::string_view(set) == "none" ? "" : set;
  // By the driver's own program, because a build without CUDA simulates such machines too. Asked once: it
  // takes a tenth of a second.
  static const std::string kGpu =
      first_line_of("nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null");
  return kGpu;
}

std::string node_of_gpu(const std::string& gpu) {
  const Catalog catalog;
  for (const std::string& name : catalog.names("node")) {
    const Result<NodeSpec> node = catalog.node(name);
    if (!node || node->gpus != 1) continue;
    const Result<DeviceSpec> device = catalog.device(node->device);
    if (device && device->title == gpu) return name;
  }
  return "";
}

Result<void> resolve_this(v1::Scenario* scenario) {
  if (scenario->hardware().node() == kThis) {
    if (Result<void> ok = resolve_node(scenario->mutable_hardware()); !ok) return ok;
  }
  if (scenario->cost().profile() == kThis)
    return resolve_profile(scenario->hardware().node(), scenario->model().name(), scenario->mutable_cost());
  return {};
}

}  // namespace kvtwin
