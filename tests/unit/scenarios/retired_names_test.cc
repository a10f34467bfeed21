// Scenarios that use a retired name: the error names its successor.

#include "engine/base/retired_names.h"

#include <doctest/doctest.h>
#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "models/files/textproto.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {
namespace {

constexpr char kPath[] = KVTWIN_SOURCE_DIR "/scenarios/test.textproto";
const std::string kGood =
    "model { name: \"llama-3.1-8b\" }\n"
    "hardware { node: \"h200\" }\n"
    "trace { path: \"../tests/unit/scenarios/scenario_test.cc\" format: \"azure\" }\n";

// Paths of all messages below `type` that have a field `name`; "" for `type` itself.
void messages_with(const google::protobuf::Descriptor* type, const std::string& name, const std::string& path,
                   std::vector<std::string>* out) {
  if (type->FindFieldByName(name) != nullptr) out->push_back(path);
  for (int i = 0; i < type->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = type->field(i);
    if (field->message_type() == nullptr || field->is_repeated()) continue;
    messages_with(field->message_type(), name, path + field->name() + ".", out);
  }
}

}  // namespace

TEST_CASE("retired names: a scenario's field or --set gets an error that names the successor") {
  int checked = 0;
  for (const RetiredName& name : kRetiredNames) {
    std::vector<std::string> paths;
    messages_with(v1::Scenario::descriptor(), std::string(name.now), "", &paths);
    for (const std::string& path : paths) {
      const auto loaded = parse_scenario(kGood, kPath, {path + std::string(name.old) + "=1"});
      REQUIRE_MESSAGE(!loaded, path << name.old);
      CHECK_MESSAGE(loaded.error().front().hint == "it is called \"" + std::string(name.now) + "\" now",
                    path << name.old);
      ++checked;
    }
  }
  CHECK(checked >= 15);
}

TEST_CASE("retired names: a value gets an error that names the successor") {
  CHECK(did_you_mean("demote", {"recompute", "swap"}) == "it is called \"swap\" now");
  CHECK(did_you_mean("arena", {"gpu", "host", "resident"}) == "it is called \"resident\" now");
  CHECK(did_you_mean("arena", {"paged", "ring", "compact"}) == "it is called \"ring\" now");
}

}  // namespace kvtwin
