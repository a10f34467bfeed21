#include "models/catalog/base_file.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "models/catalog/catalog.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// A folder that is removed at the end.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / "kvtwin_base_file_test") {
    fs::remove_all(path_);
    fs::create_directories(path_ / "gpus");
  }
  ~Folder() { fs::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

const char* const kRate = R"(hbm_bytes_per_s { value: 4e12 basis: DATASHEET source: "a data sheet" })";

TEST_CASE("base_file: a device states what differs, and a figure is taken whole") {
  const auto mine = parse_device(std::string(R"(name: "mine" base: "h200" )") + kRate, "mine.textproto");
  REQUIRE_MESSAGE(mine, (mine ? std::string() : mine.error().text()));
  const DeviceSpec base = Catalog().device("h200").value();
  CHECK(mine->name == "mine");
  CHECK_MESSAGE(mine->title.empty(), "the base's title would make this machine's GPU look like the base");
  CHECK(mine->hbm_bytes_per_s.value == 4e12);
  CHECK(mine->hbm_bytes_per_s.basis == Basis::kDatasheet);
  CHECK(mine->hbm_bytes_per_s.source == "a data sheet");
  CHECK(mine->bf16_flop_per_s.value == base.bf16_flop_per_s.value);
  CHECK(mine->bf16_flop_per_s.basis == Basis::kDatasheet);
  // Measurements were on another GPU.
  REQUIRE(base.gemm_fraction.basis == Basis::kMeasured);
  CHECK(mine->gemm_fraction.value == base.gemm_fraction.value);
  CHECK(mine->gemm_fraction.basis == Basis::kAssumed);
  CHECK(mine->gemm_fraction.source == "as on the h200, not measured here: " + base.gemm_fraction.source);
  REQUIRE(mine->all_reduce.size() == base.all_reduce.size());
  CHECK(mine->all_reduce[0].fixed_ns.basis == Basis::kAssumed);
  const auto half = parse_device(R"(name: "x" base: "h200" hbm_bytes { value: 1e10 })", "x.textproto");
  REQUIRE_FALSE(half);
  CHECK_MESSAGE(half.error().what == "hbm_bytes has no basis", "the base's basis is of the base's value");
}

TEST_CASE("base_file: all-reduces measured over other links are not taken") {
  for (const char* link : {"nvlink_bytes_per_s { value: 1e11", "nvlink_fraction { value: 0.5",
                           "all_reduce_fixed_ns { value: 1e4", "pcie_gen { value: 4"}) {
    const auto mine = parse_device(
        fmt::format(R"(name: "mine" base: "h200" {} basis: ASSUMED source: "a test" }})", link), "mine");
    REQUIRE_MESSAGE(mine, (mine ? std::string() : mine.error().text()));
    CHECK_MESSAGE(mine->all_reduce.empty(), link);
  }
}

TEST_CASE("base_file: a device with another name and price is the GPU of its base, measurements included") {
  const std::string price = R"(price_usd_per_hour { value: 2 basis: DATASHEET source: "an offer" })";
  const auto mine = parse_device(R"(name: "mine" title: "Mine" base: "h200" )" + price, "mine.textproto");
  REQUIRE_MESSAGE(mine, (mine ? std::string() : mine.error().text()));
  CHECK(mine->gemm_fraction.basis == Basis::kMeasured);
  CHECK(mine->price_usd_per_hour.value == 2);
  const auto less = parse_device(R"(name: "x" base: "h200" without: ["nvlink_bytes_per_s"] )" + price, "x");
  REQUIRE(less);
  CHECK(less->gemm_fraction.basis == Basis::kAssumed);
  const auto blank = parse_device(R"(name: "x" title: "not completed yet" base: "h200")", "x");
  REQUIRE(blank);
  CHECK(blank->gemm_fraction.basis == Basis::kAssumed);
}

TEST_CASE("base_file: figures that the device does not have are left out") {
  const auto mine =
      parse_device(R"(name: "mine" base: "h200" without: ["nvlink_bytes_per_s", "all_reduce"])", "mine");
  REQUIRE_MESSAGE(mine, (mine ? std::string() : mine.error().text()));
  CHECK_FALSE(mine->nvlink_bytes_per_s.present());
  CHECK(mine->all_reduce.empty());
}

TEST_CASE("base_file: paths are relative to the file that states them") {
  const Folder folder;
  folder.write("gpus/mine.textproto", "name: \"mine\" base: \"h100\"");
  folder.write("gpus/one.textproto", "name: \"one\" base: \"h100\" device: \"mine.textproto\"");
  const std::string many =
      folder.write("many.textproto", "name: \"many\" base: \"gpus/one.textproto\" gpus: 4");
  const auto node = Catalog().node(many);
  REQUIRE_MESSAGE(node, (node ? std::string() : node.error().text()));
  CHECK(node->gpus == 4);
  CHECK(node->sockets == 1);
  const auto device = Catalog().device(node->device);
  REQUIRE_MESSAGE(device, (device ? std::string() : device.error().text()));
  CHECK(device->name == "mine");
  CHECK(Catalog().files_of("node", many).size() == 3);  // with the catalog's h100
}

TEST_CASE("base_file: a node keeps measurements of the same GPU only") {
  CHECK(parse_node("name: \"x\" base: \"h200\" gpus: 2", "x")->pcie_bytes_per_s.basis == Basis::kMeasured);
  CHECK(parse_node("name: \"x\" base: \"h200\" device: \"h100\"", "x")->pcie_bytes_per_s.basis ==
        Basis::kAssumed);
}

TEST_CASE("catalog: names are found without case, and by their family") {
  CHECK(Catalog().node("H200-X8")->name == "h200-x8");
  CHECK(Catalog().llm("Qwen3-32B")->name == "qwen3-32b");
  const auto longer = Catalog().node("h100-80gb");
  REQUIRE_FALSE(longer);
  CHECK(longer.error().hint.find("did you mean \"h100\"") == 0);
  for (const std::string& device : Catalog().names("device"))
    CHECK_MESSAGE(Catalog().node(device), device << " has a node of one GPU");
  for (const char* name : {"", "../x", "a/b", ".x", "a b", "x.textproto", "a\\b"})
    CHECK_FALSE_MESSAGE(check_catalog_name(name, "--name"), name);
  for (const char* name : {"llama-3.1-8b", "My_Model", "7b"}) CHECK(check_catalog_name(name, "--name"));
}

}  // namespace
}  // namespace kvtwin
