// The rules applied to the whole tree, and each rule applied to a text that breaks it.

#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "engine/methods/registry.h"
#include "tests/unit/tidy/source_rules.h"

using namespace kvtwin::tidy;
using kvtwin::all_policies;
using kvtwin::PolicyInfo;

namespace {

const std::vector<std::string> kFolders = {"engine", "kernels",   "models",  "sim",
                                           "traces", "scenarios", "reports", "tests"};

void expect_none(const Findings& findings) {
  for (const std::string& finding : findings) CHECK_MESSAGE(false, finding);
}

template <typename Rule>
void over_code(Rule rule) {
  const auto files = read_sources(kFolders, {".h", ".cc", ".cu", ".cuh"});
  REQUIRE(files.size() > 10);
  for (const SourceFile& file : files) expect_none(rule(file));
}

Findings lengths_of(const std::string& text) { return check_lengths({"engine/x.cc", text}); }

std::vector<MethodName> registered() {
  std::vector<MethodName> out;
  for (const kvtwin::PolicyInfo& policy : kvtwin::all_policies())
    out.push_back({std::string(policy.axis), std::string(policy.name)});
  return out;
}

std::string lines(int count, const std::string& line = "  go();\n") {
  std::string text;
  while (count-- > 0) text += line;
  return text;
}

}  // namespace

TEST_CASE("tidy: includes point downwards") { over_code(check_includes); }
TEST_CASE("tidy: no method's name is compared outside engine/methods") {
  const std::vector<MethodName> methods = registered();
  over_code([&](const SourceFile& file) { return check_method_names(file, methods); });
}
// Names in comments are references to a method's paper, and those in scenarios/ are what users write.
TEST_CASE("tidy: few files name a method in code") {
  const auto files = read_sources({"engine", "kernels", "models", "sim", "traces", "reports"},
                                  {".h", ".cc", ".cu", ".cuh", ".proto"});
  const std::pair<const char*, size_t> most[] = {{"tova", 4}, {"freekv", 8}, {"triaxial", 12}};
  for (const auto& [name, limit] : most) {
    const std::vector<std::string> naming = files_naming(files, name);
    CAPTURE(naming);
    CHECK(!naming.empty());
    CHECK(naming.size() <= limit);
  }
}
TEST_CASE("tidy: folders do not include one another in cycles") {
  expect_none(check_folder_cycles(read_sources(kFolders, {".h", ".cc", ".cu", ".cuh"})));
}
TEST_CASE("tidy: the policy has no clock, no randomness and no backend") { over_code(check_policy_words); }
TEST_CASE("tidy: the scheduler knows neither layouts of KV nor methods") {
  std::vector<std::string> methods;
  const auto files = read_sources({"engine/methods", "engine/scheduler", "engine/kv"}, {".h", ".cc"});
  const auto text_of = [&](const std::string& path) -> std::string {
    for (const SourceFile& file : files) {
      if (file.path == path) return file.text;
    }
    return {};
  };
  methods = unmistakable(registered());
  CHECK(methods.size() > 30);
  for (const SourceFile& file : files) expect_none(check_scheduler_words(file, methods));
  // What it knows of a request.
  const int request = count_fields(text_of("engine/scheduler/request.h"), "Request");
  const int progress = count_fields(text_of("engine/kv/request_progress.h"), "RequestProgress");
  CHECK(request > 5);
  CHECK(progress == 6);
  CHECK(request + progress <= 20);
}
TEST_CASE("tidy: files, functions and lines stay short") { over_code(check_lengths); }

TEST_CASE("tidy: a header's guard is its path") {
  for (const SourceFile& file : read_sources(kFolders, {".h"})) expect_none(check_guard(file));
}

// This compiles each header that has a .cc alone; tests/unit/tidy/CMakeLists.txt compiles the other headers.
TEST_CASE("tidy: a source includes its own header first") {
  std::set<std::string> headers;
  for (const SourceFile& file : read_sources(kFolders, {".h"})) headers.insert(file.path);
  for (const SourceFile& file : read_sources(kFolders, {".cc"})) {
    const std::string own = file.path.substr(0, file.path.rfind('.')) + ".h";
    expect_none(check_own_header_first(file, headers.contains(own)));
  }
}

TEST_CASE("tidy: no notes to self, and no path of another machine") {
  for (const SourceFile& file : read_sources(
           kFolders, {".h", ".cc", ".cu", ".md", ".txt", ".cmake", ".proto", ".textproto", ".json"})) {
    expect_none(check_left_overs(file));
  }
}

TEST_CASE("tidy: every scenario that a README names exists") {
  const std::string folder = "scenarios/", ending = ".textproto";
  for (const SourceFile& file : read_sources(kFolders, {".md"})) {
    for (size_t at = file.text.find(folder); at != std::string::npos; at = file.text.find(folder, at + 1)) {
      const size_t length = file.text.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/.-", at);
      const std::string name = file.text.substr(at, length - at);
      const size_t end = name.find(ending);
      if (end == std::string::npos) continue;
      const std::string path = name.substr(0, end + ending.size());
      const bool there = std::filesystem::exists(std::filesystem::path(KVTWIN_SOURCE_DIR) / path);
      CHECK_MESSAGE(there, file.path << " names " << path);
    }
  }
}

TEST_CASE("tidy: each rule finds a violation") {
  CHECK(check_includes({"engine/scheduler/x.cc", "#include \"engine/runtime/driver.h\"\n"}).size() == 1);
  CHECK(check_includes({"engine/scheduler/x.cc", "#include \"engine/base/check.h\"\n"}).empty());
  CHECK(check_includes({"traces/import_x.cc", "#include \"engine/runtime/client.h\"\n"}).size() == 1);
  CHECK(check_includes({"traces/replay/replay.cc", "#include \"engine/runtime/client.h\"\n"}).empty());
  CHECK(check_includes({"models/x.cc", "#include <simgrid/s4u.hpp>\n"}).size() == 1);
  CHECK(check_includes({"sim/x.cc", "#include <simgrid/s4u.hpp>\n"}).empty());
  CHECK(check_includes({"engine/scheduler/x.cc", "#include \"traces/proto/run.pb.h\"\n"}).size() == 2);
  CHECK(check_includes({"engine/kv/x.cc", "#include \"engine/methods/axes.h\"\n"}).size() == 1);
  CHECK(check_includes({"sim/clock/x.cc", "#include \"engine/cpu/forward.h\"\n"}).size() == 1);

  const SourceFile down = {"a/x.cc", "#include \"b/y.h\"\n#include \"a/z.h\"\n"};
  CHECK(check_folder_cycles({down, {"b/y.h", "#include <a/z.h>\n"}}).empty());
  CHECK(check_folder_cycles({down, {"b/y.h", "#include \"a/z.h\"\n"}}).size() == 1);

  CHECK(check_policy_words({"engine/scheduler/x.cc", "#include <chrono>\n"}).size() == 1);
  CHECK(check_policy_words({"engine/scheduler/x.cc", "double ratio;\n"}).size() == 1);
  CHECK(check_policy_words({"engine/kv/x.cc", "double ratio;\n"}).size() == 1);
  CHECK(check_policy_words({"engine/scheduler/x.cc", "int doubled = 1;  // a double\n"}).empty());
  CHECK(check_policy_words({"sim/x.cc", "double ratio;\n"}).empty());

  const SourceFile modal = {"engine/scheduler/x.cc",
                            "if (retention.keeps_all()) plan();  // as freekv does\n"};
  CHECK(check_scheduler_words(modal, {"freekv"}).size() == 2);
  CHECK(check_scheduler_words({"engine/kv/x.cc", modal.text}, {"freekv"}).empty());
  CHECK(check_scheduler_words({"engine/scheduler/x.h", "bool resident_ = false;\n"}, {}).size() == 1);
  CHECK(unmistakable({{"scorer", "h2o"}, {"budget", "all"}}) == std::vector<std::string>{"h2o"});
  const std::vector<MethodName> methods = {
      {"retrieval", "all"}, {"retrieval", "freekv"}, {"precision", "int4"}};
  const auto compares = [&](const std::string& path, const std::string& code) {
    return check_method_names({path, code}, methods).size();
  };
  CHECK(compares("scenarios/x.cc", "if (set.retrieval != \"all\") go();\n") == 1);
  CHECK(compares("engine/cpu/x.cc", "if (axes.retrieval() == \"all\") go();\n") == 1);
  CHECK(compares("sim/x.cc", "if (name == \"freekv\") go();\n") == 1);
  CHECK(compares("scenarios/x.cc", "if (of == \"all\" || weights == \"int4\") go();\n") == 0);
  CHECK(compares("engine/methods/x.cc", "if (name == \"freekv\") go();\n") == 0);
  const std::vector<SourceFile> naming = {
      {"a.cc", "// as FreeKV does\n"}, {"b.cc", "x();\nset_freekv();  // one\n"}, {"c.cc", "\"FreeKV\"\n"}};
  CHECK(files_naming(naming, "freekv") == std::vector<std::string>{"b.cc", "c.cc"});
  CHECK(count_fields(
            "struct X {\n  enum class E { kA };\n  int a = 0, b;\n  bool f() const;\n  E e;  // ;\n};\n",
            "X") == 3);

  CHECK(lengths_of("void f() {\n" + lines(68) + "}\n").empty());
  CHECK(lengths_of("void f() {\n" + lines(69) + "}\n").size() == 1);
  CHECK(lengths_of("X::X(int a)\n    : a_{a},\n      b_(2) {\n" + lines(69) + "}\n").size() == 1);
  CHECK(lengths_of("class X {\n" + lines(100, "  void f();\n") + "};\n").empty());
  CHECK(lengths_of("const std::vector<int> kTable = {\n" + lines(100, "    1,\n") + "};\n").empty());
  CHECK(lengths_of("void f() {}\n" + lines(500)).size() == 1);
  CHECK(lengths_of("// " + std::string(108, 'x') + "\n").size() == 1);
  CHECK(lengths_of("const char* text = \"" + std::string(108, 'x') + "\";\n").empty());
  CHECK(lengths_of("auto brace = '{'; auto text = \"{(\"; auto thousand = 1'000;\n" + lines(80)).empty());

  CHECK(check_guard({"engine/x.h", "#ifndef X_H\n#define X_H\n#endif\n"}).size() == 1);
  CHECK(check_own_header_first({"sim/x.cc", "#include <vector>\n#include \"sim/x.h\"\n"}, true).size() == 1);
  CHECK(check_own_header_first({"sim/x.cc", "#include \"sim/x.h\"\n"}, true).empty());
  CHECK(check_left_overs({"sim/x.cc", std::string("// FIX") + "ME later\n"}).size() == 1);
}
