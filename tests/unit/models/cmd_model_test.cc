#include "scenarios/cli/cmd_model.h"

#include <doctest/doctest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
#include "models/profiles/retention_profile.h"
#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

int run(std::vector<std::string> arguments) {
  CLI::App app;
  int status = -1;
  add_model_command(app, &status);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return status;
}

TEST_CASE("kvtwin model import writes a file that the catalog reads") {
  const auto dir = std::filesystem::temp_directory_path() / "kvtwin_cmd_model_test";
  std::filesystem::create_directories(dir);
  const std::string config = (dir / "config.json").string(), out = (dir / "small.textproto").string();
  std::ofstream(config) << R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
    "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512})";
  CHECK(run({"model", "import", config, "--name=small", "--out=" + out}) == 0);
  const auto m = Catalog().llm(out);
  REQUIRE_MESSAGE(m, (m ? std::string() : m.error().text()));
  CHECK(m->name == "small");
  CHECK(m->layers == 2);
  CHECK(run({"model", "show", out}) == 0);
  CHECK(run({"model", "import", (dir / "absent.json").string(), "--name=x"}) == 2);
  CHECK(run({"model", "import", config, "--name=x", "--out=" + (dir / "no/such/folder").string()}) == 3);
  std::filesystem::remove_all(dir);
}

TEST_CASE("kvtwin model import-profile writes a profile that reads back, and refuses other input") {
  const std::string npz = testing::source_dir() + "/tests/fuzz/npz_fuzz/deflated";
  const auto dir = std::filesystem::temp_directory_path() / "kvtwin_cmd_profile_test";
  std::filesystem::create_directories(dir);
  const std::string out = (dir / "p.textproto").string();
  CHECK(run({"model", "import-profile", npz, "--name=small", "--alpha=1", "--group=2", "--out=" + out}) == 0);
  const auto text = read_text_file(out);
  REQUIRE(text);
  const auto profile = parse_retention_profile(*text, out);
  REQUIRE_MESSAGE(profile, (profile ? std::string() : profile.error().text()));
  CHECK(profile->name == "small");
  CHECK(profile->mu[1] == doctest::Approx(0.45));
  CHECK(text->find("alpha: 1") != std::string::npos);
  CHECK(run({"model", "import-profile", npz, "--alpha=-1"}) == 2);
  CHECK(run({"model", "import-profile", npz, "--group=0", "--out=" + out}) == 2);
  CHECK(run({"model", "import-profile", out}) == 2);
  CHECK(run({"model", "import-profile", npz, "--out=" + (dir / "no/such/folder").string()}) == 3);
  std::filesystem::remove_all(dir);
}

TEST_CASE("kvtwin model show refuses unknown models and impossible splits") {
  CHECK(run({"model", "show", "qwen3-32b", "--tp=4"}) == 0);
  CHECK(run({"model", "show", "qwen3-33b"}) == 2);
  CHECK(run({"model", "show", "qwen3-32b", "--tp=3"}) == 2);
}

}  // namespace
}  // namespace kvtwin
