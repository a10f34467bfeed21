#include "scenarios/output/run_setting.h"

#include <google/protobuf/text_format.h>

#include <filesystem>

#include "traces/proto/scenario.pb.h"

namespace kvtwin {
namespace {

// Names of the catalog are shown as they are, files without folder and ending.
std::string short_name(const std::string& written) {
  const std::filesystem::path path(written);
  return path.extension() == ".textproto" ? path.stem().string() : written;
}

}  // namespace

std::optional<RunSetting> run_setting(const v1::RunResult& result) {
  v1::Scenario all;
  if (result.scenario_text().empty() ||
      !google::protobuf::TextFormat::ParseFromString(result.scenario_text(), &all))
    return std::nullopt;
  const v1::Engines& engines = all.engines();
  RunSetting out;
  out.model = short_name(all.model().name());
  out.engines.push_back({engines.count(), engines.tensor_parallel(), short_name(all.hardware().node())});
  for (const v1::EngineKind& kind : engines.further())
    out.engines.push_back({kind.count(), kind.tensor_parallel(), short_name(kind.node())});
  if (engines.count() + static_cast<uint32_t>(engines.further_size()) > 1 && engines.routing() != "auto")
    out.routing = engines.routing();
  out.trace = std::filesystem::path(all.trace().path()).filename().string();
  return out;
}

}  // namespace kvtwin
