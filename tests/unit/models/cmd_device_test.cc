#include "scenarios/cli/cmd_device.h"

#include <doctest/doctest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "models/catalog/catalog.h"
#include "models/catalog/device_report.h"
#include "models/files/textproto.h"

namespace kvtwin {
namespace {

int run_device(std::vector<std::string> arguments) {
  CLI::App app;
  int status = -1;
  add_device_command(app, &status);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return status;
}

TEST_CASE("kvtwin device new writes a device and a node that work at once") {
  const auto dir = std::filesystem::temp_directory_path() / "kvtwin_cmd_device_test";
  std::filesystem::remove_all(dir);
  const std::string out = "--out=" + dir.string();
  CHECK(run_device({"device", "new", "mine", "--base=H100", out}) == 0);
  const std::string device_path = (dir / "mine.textproto").string();
  const auto device = Catalog().device(device_path);
  REQUIRE_MESSAGE(device, (device ? std::string() : device.error().text()));
  CHECK(device->name == "mine");
  CHECK(device->hbm_bytes_per_s.value == Catalog().device("h100")->hbm_bytes_per_s.value);
  const auto node = Catalog().node((dir / "mine-node.textproto").string());
  REQUIRE_MESSAGE(node, (node ? std::string() : node.error().text()));
  CHECK(node->device == device_path);
  CHECK(run_device({"device", "check", device_path}) == 0);
  CHECK(run_device({"device", "check", (dir / "mine-node.textproto").string()}) == 0);
  CHECK_MESSAGE(run_device({"device", "new", "mine", "--base=h100", out}) == 2, "it is there already");
  CHECK(run_device({"device", "new", "../mine", "--base=h100", out}) == 2);
  CHECK(run_device({"device", "new", "other", "--base=h1000", out}) == 2);
  CHECK(run_device({"device", "new", "second", "--base=" + device_path, out}) == 0);
  CHECK(Catalog().device((dir / "second.textproto").string()));
  // Every figure of the base is there as a comment: uncommenting them all gives a file that needs no base.
  auto text = read_text_file(device_path);
  REQUIRE(text);
  std::string all;
  size_t from = 0;
  while (from < text->size()) {
    const size_t end = text->find('\n', from);
    const std::string line = text->substr(from, end - from);
    const bool figure = line.find(" { value: ") != std::string::npos || line.starts_with("#   source: ");
    if (!line.starts_with("base:")) all += (figure ? line.substr(2) : line) + "\n";
    from = end + 1;
  }
  const auto complete = parse_device(all, "all");
  CHECK_MESSAGE(complete, (complete ? std::string() : complete.error().text()));
  std::filesystem::remove_all(dir);
}

TEST_CASE("kvtwin device check names the origin of every figure") {
  const auto report = device_report(Catalog(), "h20");
  REQUIRE_MESSAGE(report, (report ? std::string() : report.error().text()));
  CHECK(report->find("are of its base, h100") != std::string::npos);
  CHECK(report->find("hbm_bytes_per_s             4000000000000  datasheet  this file") != std::string::npos);
  CHECK(run_device({"device", "check", "h2000"}) == 2);
}

}  // namespace
}  // namespace kvtwin
