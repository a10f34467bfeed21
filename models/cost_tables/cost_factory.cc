#include "models/cost_tables/cost_factory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "models/cost/roofline_cost.h"
#include "models/cost_tables/measured_cost.h"
#include "models/cost_tables/table_cost.h"

namespace kvtwin {
namespace {

// Prices from measurements of our own engine on one GPU.
Result<std::unique_ptr<CostModel>> make_measured(const CostModelSpec& spec) {
  if (spec.tp != 1)
    return make_error(spec.profile, fmt::format("was measured on one GPU, engines have {}", spec.tp),
                      "leave the profile out to use the roofline");
  Result<MeasuredDevice> read;
  if (spec.measured == nullptr) {
    read = load_measured_device(spec.profile);
    if (!read) return tl::unexpected<Error>(read.error());
  }
  auto model = MeasuredCost::make(spec.measured != nullptr ? *spec.measured : *read, spec.llm, spec.host,
                                  spec.profile, spec.graphs, spec.precision);
  if (!model) return tl::unexpected<Error>(model.error());
  return std::move(*model);
}

}  // namespace

Result<std::unique_ptr<CostModel>> make_cost_model(const CostModelSpec& spec,
                                                   std::vector<std::string>* notes) {
  if (auto r = check_llm(spec.llm, "model"); !r) return tl::unexpected<Error>(r.error());
  if (auto r = check_tp(spec.llm, spec.tp, "model"); !r) return tl::unexpected<Error>(r.error());
  if (spec.profile.empty()) return std::make_unique<RooflineCost>(spec.llm, spec.device, spec.tp, spec.host);
  if (spec.profile.ends_with(".textproto")) return make_measured(spec);
  if (spec.llm.moe_layers() > 0)
    return make_error(
        spec.profile,
        fmt::format("kernel tables price dense models, and {} is a mixture of experts", spec.llm.name),
        "leave out cost.profile for the roofline; kvtwin calibrate server fits it to a server's log");
  std::error_code ignored;
  if (std::filesystem::is_regular_file(spec.profile, ignored))
    return make_error(
        spec.profile, "is no profile",
        "a folder of kernel tables, or a .textproto of kvtwin calibrate device or calibrate server");
  const Result<CostTables> tables = load_cost_tables(spec.profile, spec.tp);
  if (!tables) return tl::unexpected<Error>(tables.error());
  auto model = TableCost::make(*tables, spec.llm, spec.tp, static_cast<uint32_t>(spec.device.sm_count.value),
                               spec.host, all_reduce_rate(spec.device, spec.tp),
                               std::make_unique<RooflineCost>(spec.llm, spec.device, spec.tp, spec.host));
  if (!model) return tl::unexpected<Error>(model.error());
  if (notes != nullptr && !tables->unread.empty())
    notes->push_back(fmt::format("{} has times of {}, which no price reads: steps are too short by them",
                                 spec.profile, fmt::join(tables->unread, ", ")));
  return std::move(*model);
}

}  // namespace kvtwin
