#include "traces/importers/formats.h"

#include <set>

#include "tests/unit/traces/support.h"

using namespace kvtwin;
using namespace kvtwin::testing;

TEST_CASE("formats: names are unique") {
  std::set<std::string> names;
  for (const TraceFormat& format : formats()) CHECK(names.insert(format.name).second);
  CHECK(formats().front().name == "kvtwin");
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
