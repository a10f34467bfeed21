// Retired names: none comes back, and users who write one get its successor.

#include <doctest/doctest.h>

#include <map>

#include "engine/base/retired_names.h"
#include "tests/unit/tidy/source_rules.h"

using namespace kvtwin::tidy;

namespace {

const std::vector<std::string> kFolders = {"engine", "kernels",   "models",  "sim",
                                           "traces", "scenarios", "reports", "tests"};

RetiredNames retired() {
  const auto lists = read_sources({"tests/unit/tidy"}, {".tsv"});
  REQUIRE(lists.size() == 1);
  return read_retired(lists.front().text);
}

}  // namespace

TEST_CASE("tidy: retired identifiers stay out") {
  const RetiredNames names = retired();
  REQUIRE(names.size() > 500);
  for (const SourceFile& file : read_sources(
           kFolders, {".h", ".cc", ".cu", ".cuh", ".proto", ".textproto", ".ts", ".py", ".sh", ".cmake"})) {
    for (const std::string& finding : check_retired(file, names)) CHECK_MESSAGE(false, finding);
  }
}

TEST_CASE("tidy: a retired identifier is found as a whole word, with its successor") {
  const RetiredNames names = {{"old_name", "new_name"}};
  const Findings found = check_retired({"engine/x.cc", "int a;\nint old_name = 1;\n"}, names);
  REQUIRE(found.size() == 1);
  CHECK(found.front() == "engine/x.cc:2: old_name is called new_name now");
  CHECK(check_retired({"engine/x.cc", "int older_name = old_names;\n"}, names).empty());
}

// An entry maps an old name to a successor. A successor that is itself retired would send users in a circle.
TEST_CASE("tidy: no successor is itself retired") {
  const RetiredNames names = retired();
  for (const auto& [old, now] : names) CHECK_MESSAGE(!names.contains(now), old << " -> " << now);
  for (const kvtwin::RetiredName& name : kvtwin::kRetiredNames) {
    CHECK(name.old != name.now);
    CHECK_MESSAGE(!names.contains(std::string(name.now)), name.old << " -> " << name.now);
    const auto listed = names.find(std::string(name.old));
    if (listed != names.end()) CHECK_MESSAGE(listed->second == name.now, name.old << " has two successors");
  }
}

TEST_CASE("retired names: the successor is named where it is known") {
  using kvtwin::name_now;
  CHECK(name_now("arena", {"paged", "ring"}) == "ring");
  CHECK(name_now("arena", {"gpu", "host", "resident"}) == "resident");
  CHECK(name_now("arena", {"gpu", "host"}).empty());
  CHECK(name_now("ring", {"paged", "ring"}).empty());
}
