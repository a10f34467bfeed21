// Which heads a launch of page_choice.h takes, and which queries score their pages.

#ifndef KVTWIN_KERNELS_SELECT_CHOOSING_HEADS_CUH_
#define KVTWIN_KERNELS_SELECT_CHOOSING_HEADS_CUH_

#include "kernels/select/page_choice.h"

namespace kvtwin::device {

// `head`: of all KV heads of all rows.
__device__ inline bool takes(const ChoiceArgs& args, uint32_t head) {
  return args.now == nullptr || (args.now[head] != 0) == (args.step == ChoosesFor::kThisStep);
}

// The queries of a KV head, [group][head_dim], that score its pages.
__device__ inline const __nv_bfloat16* scoring_queries(const ChoiceShape& shape, const ChoiceArgs& args,
                                                       const ChoiceRow& row, uint32_t head) {
  const bool stored = args.step == ChoosesFor::kNextStep;
  const size_t at = size_t{stored ? row.state : row.row} * shape.kv_heads + head;
  return (stored ? args.q_before : args.q) + at * shape.group * shape.head_dim;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SELECT_CHOOSING_HEADS_CUH_
