#include "scenarios/load/gpu_at_hand.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "models/catalog/catalog.h"
#include "models/cost_tables/measured_device.h"
#include "scenarios/app/compose.h"
#include "scenarios/load/scenario.h"
#include "scenarios/validate/recordings.h"
#include "tests/support/source_dir.h"

using namespace kvtwin;

namespace {

// KVTWIN_GPU for as long as this lives.
class GivenGpu {
 public:
  explicit GivenGpu(const char* gpu) { setenv(kGpuVariable, gpu, 1); }
  ~GivenGpu() { unsetenv(kGpuVariable); }
};

tl::expected<Scenario, Errors> loaded(const std::string& hardware, const std::string& profile) {
  return parse_scenario("model { name: \"llama-3.1-8b\" }\nhardware { " + hardware + " }\n" +
                            "trace { path: \"t.csv\" format: \"azure\" }\ncost { profile: \"" + profile +
                            "\" }\n",
                        "/nowhere/s.textproto", {});
}

}  // namespace

TEST_CASE(
    "this: the catalog's node of the GPU at hand; else the one that is named for elsewhere; else an error") {
  const struct {
    const char *name, *gpu, *hardware, *node;
    const char* error;
  } rows[] = {
      {"an H100", "NVIDIA H100 80GB HBM3", "node: \"this\"", "h100", ""},
      {"one GPU of a node of eight", "NVIDIA H200", "node: \"this\" otherwise: \"l40s\"", "h200", ""},
      {"no GPU", "none", "node: \"this\" otherwise: \"l40s\"", "l40s", ""},
      {"a GPU that no node has", "NVIDIA T4", "node: \"this\" otherwise: \"l40s\"", "l40s", ""},
      {"a node by its name", "NVIDIA H200", "node: \"l40s\"", "l40s", ""},
      {"no GPU, nothing named", "none", "node: \"this\"", "", "finds no GPU"},
      {"a GPU that no node has, nothing named", "NVIDIA T4", "node: \"this\"", "", "NVIDIA T4"},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.name));
    const GivenGpu given(row.gpu);
    const auto scenario = loaded(row.hardware, "");
    std::string all;
    if (!scenario) {
      for (const Error& error : scenario.error()) all += error.text() + "\n";
    }
    CAPTURE(all);
    if (*row.error == '\0') {
      // (Errors about the trace that is not there are not this test's.)
      CHECK(all.find("hardware.node") == std::string::npos);
      if (scenario) CHECK(scenario->values.hardware().node() == row.node);
    } else {
      CHECK(all.find(row.error) != std::string::npos);
    }
  }
}

TEST_CASE("this, of a profile: the measured one of the node's GPU, or an error that says how to make it") {
  const auto with = loaded("node: \"h200\"", "this"), without = loaded("node: \"l40s\"", "this");
  if (with) CHECK(with->values.cost().profile().ends_with("models/measured/h200.textproto"));
  REQUIRE(!without);
  std::string all;
  for (const Error& error : without.error()) all += error.text() + "\n";
  CHECK(all.find("no measured profile of l40s, nor of another GPU") != std::string::npos);
  CHECK(all.find("kvtwin calibrate device --out=") != std::string::npos);
}

TEST_CASE("recordings: a scenario that asks for more pages than its GPU holds gets as many as fit") {
  const std::string path =
      kvtwin::testing::source_dir() + "/scenarios/suites/calibration/pyramidkv.textproto";  // 101 GB
  const GivenGpu given("none");
  const std::vector<std::string> large = {"hardware.node=h200"}, small = {"hardware.node=h100"};
  const auto on_large = sets_that_fit(path, large, {}), on_small = sets_that_fit(path, small, {});
  REQUIRE(on_large);
  REQUIRE(on_small);
  CHECK(*on_large == large);
  REQUIRE(on_small->size() == 2);
  const std::string flag = "memory.gpu_pages=";
  REQUIRE(on_small->back().starts_with(flag));
  const auto pages = std::stoul(on_small->back().substr(flag.size()));
  // 80 GB, nine tenths of it, less 16 GB of weights: 23 to 28 thousand pages of 2 MiB.
  CHECK(pages > 20'000);
  CHECK(pages < 30'000);
}

TEST_CASE("prices: the engine makes graphs before the first step, but for recalls of what a budget left") {
  const struct Row {
    const char* scenario;
    bool met;  // they are made as forms of steps come up
  } rows[] = {{"suites/validation/quest", false},
              {"suites/validation/freekv", false},
              {"suites/validation/snapkv", false},
              {"suites/validation/mixed", false},
              {"methods/freekv_snapkv", true}};
  for (const Row& row : rows) {
    CAPTURE(std::string(row.scenario));
    const auto scenario = load_scenario(
        kvtwin::testing::source_dir() + "/scenarios/" + row.scenario + ".textproto",
        {"hardware.node=h200", "cost.profile=" + default_models_dir() + "/measured/h200.textproto"});
    REQUIRE_MESSAGE(scenario, (scenario ? std::string() : scenario.error().front().text()));
    const auto composed = compose(*scenario);
    REQUIRE_MESSAGE(composed, (composed ? std::string() : composed.error().front().text()));
    CHECK((composed->cost->graphs_kept() > 0) == row.met);
  }
}

TEST_CASE(
    "prices: operations that a profile lacks are those of the same GPU, or the mean of GPUs with as many "
    "SMs, "
    "and a note names these") {
  auto scenario = load_scenario(
      kvtwin::testing::source_dir() + "/scenarios/suites/validation/snapkv.textproto",
      {"hardware.node=h200", "cost.profile=" + default_models_dir() + "/measured/h200.textproto"});
  REQUIRE(scenario);
  const auto notes_of = [](const Scenario& one) {
    const auto composed = compose(one);
    REQUIRE(composed);
    std::string all;
    for (const std::string& note : composed->notes) all += note + "\n";
    return all;
  };
  CHECK(notes_of(*scenario).find("not measured") == std::string::npos);
  auto device = load_measured_device(default_models_dir() + "/measured/h200.textproto");
  REQUIRE(device);
  device->operations.reset();
  const auto folder = std::filesystem::temp_directory_path() / "kvtwin_sibling_test";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "device.textproto").string();
  std::ofstream(path) << measured_device_textproto(*device);
  scenario->values.mutable_cost()->set_profile(path);
  CHECK(notes_of(*scenario).find("another file of NVIDIA H200 prices") != std::string::npos);
  device->gpu = "NVIDIA H200 NVL";
  std::ofstream(path) << measured_device_textproto(*device);
  CHECK(notes_of(*scenario).find("the mean of NVIDIA H100 80GB HBM3 and NVIDIA H200 prices") !=
        std::string::npos);
  device->sm_count = 108;
  std::ofstream(path) << measured_device_textproto(*device);
  CHECK(notes_of(*scenario).find("the roofline prices it") != std::string::npos);
  std::filesystem::remove_all(folder);
}
