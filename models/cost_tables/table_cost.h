// TableCost prices steps from measured kernel times (cost_tables.h).
//
//   step = embedding + layers * (2 norms + qkv + rotary + attention + output + gate-up + activation +
//          down [+ 2 all-reduces]) + final norm + output head + sampler
//
// Dense kernels run on the padded tokens, linear between measured counts. The head and the sampler run on the
// tokens that sample, at least one: an engine launches them even when no request of the step finishes its
// prompt. attention_table.h has attention. All-reduces of tensor parallelism are not in the tables and come
// from the roofline.
//
// A head that the tables lack comes from the roofline.
//
// Evidence is per part: measured on a point of the table, interpolated between points, extrapolated
// outside them.

#ifndef KVTWIN_MODELS_COST_TABLES_TABLE_COST_H_
#define KVTWIN_MODELS_COST_TABLES_TABLE_COST_H_

#include <memory>
#include <vector>

#include "engine/base/result.h"
#include "models/catalog/llm.h"
#include "models/cost/all_reduce.h"
#include "models/cost/partwise_cost.h"
#include "models/cost/roofline_cost.h"
#include "models/cost_tables/attention_table.h"
#include "models/cost_tables/cost_tables.h"

namespace kvtwin {

class TableCost final : public PartwiseCost {
 public:
  // Refuses tables whose layer is not this model's. `all_reduce` is used if tp > 1, `roofline` (of the same
  // model and device) where the tables have no head; it may be null otherwise.
  static Result<std::unique_ptr<TableCost>> make(const CostTables& tables, const LlmSpec& llm, uint32_t tp,
                                                 uint32_t sm_count, const HostTime& host,
                                                 const AllReduceRate& all_reduce,
                                                 std::unique_ptr<RooflineCost> roofline = nullptr);

 private:
  TableCost(const CostTables& tables, const LlmSpec& llm, uint32_t tp, uint32_t sm_count,
            const HostTime& host, const AllReduceRate& all_reduce, std::unique_ptr<RooflineCost> roofline);

  std::vector<StepPart> dense_ops(uint32_t tokens) const override;
  std::vector<StepPart> head_ops(uint32_t rows) const override;
  size_t attention_ops(const StepShape& shape, AttentionOps* out) override;

  std::array<Curve, kDenseOps> dense_;
  std::array<Axis, kDenseOps> dense_axes_;
  Curve lm_head_, sampler_;
  Curve qk_norm_;
  Axis lm_head_axis_, sampler_axis_, qk_norm_axis_;
  AttentionTable attention_;
  uint32_t layers_, tp_, hidden_;
  bool has_qk_norm_;
  AllReduceRate all_reduce_;
  std::unique_ptr<RooflineCost> roofline_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_TABLE_COST_H_
