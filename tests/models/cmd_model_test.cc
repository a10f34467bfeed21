#include "scenarios/cli/cmd_model.h"

#include <doctest/doctest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "models/catalog.h"

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

TEST_CASE("kvtwin model show refuses unknown models and impossible splits") {
  CHECK(run({"model", "show", "qwen3-32b", "--tp=4"}) == 0);
  CHECK(run({"model", "show", "qwen3-33b"}) == 2);
  CHECK(run({"model", "show", "qwen3-32b", "--tp=3"}) == 2);
}

}  // namespace
}  // namespace kvtwin
