#include "traces/importers/formats.h"

#include <set>

#include "tests/unit/traces/support.h"

using namespace kvtwin;
using namespace kvtwin::testing;

TEST_CASE("formats: names are unique, and unknown ones are answered with the choices") {
  std::set<std::string> names;
  for (const TraceFormat& format : formats()) CHECK(names.insert(format.name).second);
  CHECK(formats().front().name == "kvtwin");
  CHECK(contains(import_error("nope", "x").text(),
                 "format: 'nope' is not a format that can be read; kvtwin, weka"));
  CHECK(contains(make_exporter("llmservingsim", "x").error().text(),
                 "can be written; kvtwin, weka, mooncake, azure"));
}

TEST_CASE("formats: auto names the evidence when it cannot decide") {
  const Folder dir;
  CHECK(contains(import_error("auto", dir.write("x", "hello")).text(), "of no known format"));
  CHECK(contains(import_error("auto", dir.file("missing")).text(), "does not exist"));
  CHECK(contains(import_error("mooncake", dir.path()).text(), "is a directory"));
  CHECK(contains(import_error("weka", dir.path()).text(), "holds no WEKA trace"));
  CHECK(contains(import_error("weka", dir.write("x.tar.xz", "garbage")).text(),
                 "cannot be read as an archive"));
}

TEST_CASE("formats: a trace converted to kvtwin and back has the same sessions") {
  const Folder dir;
  const KeepAll all =
      imported("mooncake",
               dir.write("m.jsonl", R"({"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[4]})"));
  export_to("kvtwin", all, dir.file("m.trace"));
  const KeepAll back = imported("auto", dir.file("m.trace"));
  CHECK(back.head.SerializeAsString() == all.head.SerializeAsString());
  CHECK(back.sessions.at(0).SerializeAsString() == all.sessions.at(0).SerializeAsString());
}
