#include <google/protobuf/text_format.h>

#include "engine/base/check.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

// Embedded files of this folder.
extern const char kScenarioDefaults[];
extern const char kPresetVllmV1[];

std::vector<std::string> preset_names() { return {"", "vllm_v1"}; }

v1::Scenario default_scenario(std::string_view preset) {
  v1::Scenario out;
  KVT_CHECK(google::protobuf::TextFormat::ParseFromString(kScenarioDefaults, &out));
  if (preset == "vllm_v1") KVT_CHECK(google::protobuf::TextFormat::MergeFromString(kPresetVllmV1, &out));
  return out;
}

}  // namespace kvtwin
