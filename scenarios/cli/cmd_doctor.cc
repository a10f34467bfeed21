// kvtwin doctor: what this build on this machine can do, and what it would take to do the rest.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "models/catalog/catalog.h"
#include "models/cost_tables/measured_device.h"
#include "scenarios/app/compose.h"
#include "scenarios/cli/cli.h"
#include "scenarios/load/gpu_at_hand.h"
#ifdef KVTWIN_HAVE_CUDA
#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/device/device_facts.h"
#endif

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// One line: what, whether, and what it is or what it would take.
void line(const char* what, bool good, const std::string& text) {
  fmt::print("  {:<22}{:<5}{}\n", what, good ? "yes" : "no", text);
}

double gib(double bytes) { return bytes / 1073741824; }

double host_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

// The GPU's node of the catalog and the profile of it that is shipped or was calibrated.
void print_catalog(const std::string& gpu) {
  const std::string node_name = node_of_gpu(gpu);
  line("in the catalog", !node_name.empty(),
       node_name.empty()
           ? "no node has this GPU: write models/device/NAME.textproto and models/node/NAME.textproto"
           : fmt::format("hardware.node: \"this\" is \"{}\"", node_name));
  if (node_name.empty()) return;
  const Result<NodeSpec> node = Catalog().node(node_name);
  if (!node) return;
  const fs::path path = fs::path(default_models_dir()) / "measured" / (node->device + ".textproto");
  const Result<MeasuredDevice> profile = load_measured_device(path.string());
  line("measured step times", profile.has_value(),
       profile ? fmt::format("{} ({}, {}, {} families of operations); on another machine check it: kvtwin "
                             "calibrate device --anchors={}",
                             path.string(), profile->date, profile->model,
                             profile->operations ? profile->operations->prices.size() : 0, path.string())
               : fmt::format("steps are priced by the roofline; measure them in 3 minutes: kvtwin calibrate "
                             "device --out={}",
                             path.string()));
}

#ifdef KVTWIN_HAVE_CUDA
bool print_engine() {
  const Result<void> ok = cuda::check_gpu();
  if (!ok) {
    line("cuda backend", false, ok.error().text());
    return false;
  }
  const cuda::DeviceFacts facts = cuda::device_facts();
  line(
      "cuda backend", true,
      fmt::format("driver {}, CUDA {}, {:.1f} of {:.1f} GiB free", facts.driver, facts.cuda,
                  gib(static_cast<double>(facts.memory_free)), gib(static_cast<double>(facts.memory_total))));
  return true;
}
#else
bool print_engine() {
  line("cuda backend", false,
       "this build has no CUDA: ./dev test --gpu, or configure with -DKVTWIN_CUDA=ON where nvcc is");
  return false;
}
#endif

int run_doctor() {
  fmt::print("This machine and this build\n");
  line("simulated backend", can_simulate(),
       can_simulate() ? "kvtwin run coding_agents_small" : "install libsimgrid-dev and configure again");
  line("cpu backend", true,
       fmt::format("{} cores, {:.1f} GiB; computes tiny models: kvtwin run search_tiny --backend=cpu",
                   sysconf(_SC_NPROCESSORS_ONLN), gib(host_memory())));
  const std::string gpu = gpu_at_hand();
  line("GPU", !gpu.empty(),
       gpu.empty() ? "nvidia-smi finds none; GPUs of the catalog are simulated (kvtwin list nodes)" : gpu);
  if (!gpu.empty()) print_catalog(gpu);
  const bool cuda = print_engine();
  if (cuda)
    fmt::print(
        "\nNext: kvtwin validate scenarios/suites/validation/mixed.textproto --out=out/validation   (real "
        "runs against\n"
        "their simulation; docs/guides/validate-on-your-gpu.md)\n");
  else
    fmt::print(
        "\nNext: kvtwin run coding_agents_small. In the repository, docs/quickstart.md goes on, and recorded "
        "runs of an H100\nand an H200 are validated without a GPU: kvtwin validate suites/validation/mixed "
        "--recorded=tests/golden/h100\n");
  return can_simulate() ? kExitDone : kExitNoBackend;
}

}  // namespace

void add_doctor_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("doctor");
  command->callback([status] { *status = run_doctor(); });
}

}  // namespace kvtwin
