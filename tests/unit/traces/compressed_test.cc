// Compressed files are read in every format, and broken ones are refused.
#include <cstdlib>

#include "tests/unit/traces/support.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

const std::string kRow = R"({"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[4]})"
                         "\n";

bool has_tool(const std::string& tool) {
  return std::system(("command -v " + tool + " > /dev/null").c_str()) == 0;
}

}  // namespace

TEST_CASE("compressed: a gzip or zstd file is the file in it") {
  for (const auto& [tool, ending] : {std::pair{"gzip", ".gz"}, {"zstd", ".zst"}, {"xz", ".xz"}}) {
    if (!has_tool(tool)) {
      MESSAGE("skipped: there is no " << tool);
      continue;
    }
    const Folder dir;
    const std::string plain = dir.write("rows.jsonl", kRow + kRow);
    REQUIRE(std::system((std::string(tool) + " -k -q " + plain).c_str()) == 0);
    const KeepAll all = imported("auto", plain + ending);
    CHECK(all.sessions.size() == 2);
    const std::string document = dir.write("result.json", R"({"input_lens":[3],
      "output_lens":[2],"start_times":[1.0],"ttfts":[0.5],"itls":[[0.5]]})");
    REQUIRE(std::system((std::string(tool) + " -k -q " + document).c_str()) == 0);
    CHECK(imported("auto", document + ending).sessions.size() == 1);
    const std::string bytes = slurp(plain + ending);
    const Error cut =
        import_error("mooncake", dir.write("cut" + std::string(ending), bytes.substr(0, bytes.size() / 2)));
    CHECK(contains(cut.text(), "cut"));
  }
}
