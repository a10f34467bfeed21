#include "scenarios/load/gpu_at_hand.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "scenarios/load/scenario.h"

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
  CHECK(all.find("no measured profile of l40s") != std::string::npos);
  CHECK(all.find("kvtwin calibrate device --out=") != std::string::npos);
}
