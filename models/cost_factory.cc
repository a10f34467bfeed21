#include "models/cost_factory.h"

#include "models/roofline_cost.h"
#include "models/table_cost.h"

namespace kvtwin {

Result<std::unique_ptr<CostModel>> make_cost_model(const CostModelSpec& spec) {
  if (auto r = check_llm(spec.llm, "model"); !r) return tl::unexpected<Mistake>(r.error());
  if (auto r = check_tp(spec.llm, spec.tp, "model"); !r) return tl::unexpected<Mistake>(r.error());
  if (spec.profile.empty()) return std::make_unique<RooflineCost>(spec.llm, spec.device, spec.tp, spec.host);
  const Result<CostTables> tables = load_cost_tables(spec.profile, spec.tp);
  if (!tables) return tl::unexpected<Mistake>(tables.error());
  auto model = TableCost::make(*tables, spec.llm, spec.tp, static_cast<uint32_t>(spec.device.sm_count.value),
                               spec.host, all_reduce_rate(spec.device, spec.tp));
  if (!model) return tl::unexpected<Mistake>(model.error());
  return std::move(*model);
}

}  // namespace kvtwin
