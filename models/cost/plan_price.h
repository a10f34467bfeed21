// The time of planning attention work on the CPU: FlashInfer's planner, per plan.
//
// Measured on an H200's host (docs/design/kernels.md#paged-decode: tensor-core decode, planning and
// enqueuing, without the copy): rows of about equal lengths take 3.4 us for 1 and 12.2 us for 128; with each
// KV head as a row of its own and lengths of 10 and 90 %, 8.9 us for 8 and 25.2 us for 256. A planner in
// Python takes far longer (TANGRAM: 5.6 to 17.1 ms per step of 28 to 80 layers), hence `given_ns`.

#ifndef KVTWIN_MODELS_COST_PLAN_PRICE_H_
#define KVTWIN_MODELS_COST_PLAN_PRICE_H_

#include <cstdint>

namespace kvtwin {

struct PlanPrice {
  uint32_t plans_per_step = 0;    // 0: nothing is planned on the host; layers, where lengths differ by layer
  uint32_t rows_per_request = 1;  // KV heads, where lengths differ by head
  int64_t given_ns = 0;           // per plan; 0: the measured table

  // For a step in which `requests` requests decode.
  int64_t ns(uint32_t decodes) const;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_PLAN_PRICE_H_
