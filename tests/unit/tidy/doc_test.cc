// Every reference to the documentation resolves, and the rule finds those that do not.

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/tidy/doc_rules.h"

using namespace kvtwin::tidy;

namespace {

const std::vector<std::string> kReferring = {"cmake", "docs",   "engine",    "kernels", "models",
                                             "sim",   "traces", "scenarios", "reports", "tests"};
const std::vector<std::string> kExtensions = {".h",  ".cc", ".cu", ".cuh", ".md",    ".proto", ".textproto",
                                              ".py", ".sh", ".ts", ".txt", ".cmake", ".mjs"};

// Split in two, so that this file passes its own test.
const std::string kPage = std::string("docs") + "/design/page.md";

Findings references_in(const std::string& path, const std::string& text) {
  const Anchors anchors = read_anchors(
      {{kPage, "# A page\n\n<a id=\"first\"></a>\n\n## The first part: why\n\n## Plain words\n"}});
  return check_references({path, text}, anchors);
}

}  // namespace

TEST_CASE("tidy: every reference to docs/ resolves") {
  const Anchors anchors = read_anchors(read_sources({"docs"}, {".md"}));
  REQUIRE(anchors.size() > 10);
  size_t referring = 0;
  for (const SourceFile& file : read_sources(kReferring, kExtensions)) {
    referring += file.text.find(std::string("docs") + "/design/") != std::string::npos ? 1 : 0;
    for (const std::string& finding : check_references(file, anchors)) CHECK_MESSAGE(false, finding);
  }
  CHECK(referring > 100);
}

TEST_CASE("tidy: documents that are not in the repository are not referenced") {
  for (const SourceFile& file : read_sources(kReferring, kExtensions)) {
    if (file.path.starts_with("reports/evidence/")) continue;  // dated records
    for (const std::string& finding : check_retired_documents(file)) CHECK_MESSAGE(false, finding);
  }
}

TEST_CASE("tidy: unresolved references from code are found") {
  CHECK(references_in("engine/x.h", "// As in " + kPage + "#first.\n").empty());
  CHECK(references_in("engine/x.h", "// As in " + kPage + ".\n").empty());
  CHECK(references_in("engine/x.h", "// " + kPage + "#first, #plain-words; " + kPage + "#first\n").empty());
  CHECK(references_in("engine/x.h", "// https://example.org/" + kPage + "#other\n").empty());

  const Findings anchor = references_in("engine/x.h", "\n// As in " + kPage + "#second.\n");
  REQUIRE(anchor.size() == 1);
  CHECK(anchor.front() == "engine/x.h:2: " + kPage + " has no anchor #second");
  CHECK(references_in("engine/x.h", "// " + kPage + "#first, #second\n").size() == 1);
  CHECK(references_in("engine/x.h", "// " + kPage + "#first,\n// #second\n").size() == 1);
  CHECK(references_in("scenarios/x.textproto", "# " + kPage + "#first and\n# #second\n").size() == 1);
  CHECK(references_in("engine/x.h", "// " + kPage + "#the-first-part-why\n").size() == 1);  // not plain words

  const Findings page = references_in("engine/x.h", "// " + std::string("docs") + "/design/none.md#first\n");
  REQUIRE(page.size() == 1);
  CHECK(page.front().ends_with("none.md does not exist"));
}

TEST_CASE("tidy: a retired document's name is found as a whole word") {
  const std::string methods = std::string("METH") + "ODS", simgrid = std::string("SIMG") + "RID";
  const Findings found = check_retired_documents({"engine/x.h", "\n// As in " + methods + " 2.4.\n"});
  REQUIRE(found.size() == 1);
  CHECK(found.front().starts_with("engine/x.h:2: " + methods));
  CHECK(check_retired_documents({"engine/x.h", "#ifndef KVTWIN_" + methods + "_H_\n"}).empty());
  CHECK(check_retired_documents({"sim/x.cc", "// " + simgrid + " 4.1\n"}).size() == 1);
  CHECK(check_retired_documents({"CMakeLists.txt", "kvtwin_optional(" + simgrid + " ON)\n"}).empty());
}
