// Conversion between a log's records and the specifications of budgets and layouts.

#ifndef KVTWIN_ENGINE_RECORDER_RECORDER_RETENTION_H_
#define KVTWIN_ENGINE_RECORDER_RECORDER_RETENTION_H_

#include "engine/kv/head_groups.h"
#include "engine/methods/budget_spec.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

// Values out of range are reported when the policies are validated.
BudgetSpec recorded_budget(const v1::RecordedBudget& in);
void record_budget(const BudgetSpec& in, v1::RecordedBudget* out);
LayoutSpec recorded_layout(const v1::RecordedLayout& in);
void record_layout(const LayoutSpec& in, v1::RecordedLayout* out);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_RETENTION_H_
