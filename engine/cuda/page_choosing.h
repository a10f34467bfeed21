// Converts a retrieval's options to those of the kernels that summarise, score, choose and recall pages.

#ifndef KVTWIN_ENGINE_CUDA_PAGE_CHOOSING_H_
#define KVTWIN_ENGINE_CUDA_PAGE_CHOOSING_H_

#include <cmath>

#include "engine/common/retrieval/page_pooling.h"
#include "kernels/cache_ops/page_moves.h"
#include "kernels/select/page_choice.h"
#include "models/catalog/llm.h"

namespace kvtwin::cuda {

constexpr uint32_t kRecallCtas = 4;  // of recalls that attention waits for

inline PageSummaryKind kind_of(PageSummary summary) {
  switch (cpu::kind_of(summary)) {
    case kernels::SummaryKind::kCuboid:
      return PageSummaryKind::kCuboid;
    case kernels::SummaryKind::kMean:
      return PageSummaryKind::kMean;
    case kernels::SummaryKind::kMinMax:
      break;
  }
  return PageSummaryKind::kMinMax;
}

// `kv_heads`: KV heads per row of choices; `chosen`: pages.
inline ChoiceShape choice_shape(const LlmSpec& llm, const RetrievalSpec& spec, uint32_t kv_heads,
                                uint32_t chosen) {
  ChoiceShape out;
  out.head_dim = llm.head_dim, out.kv_heads = kv_heads, out.group = llm.query_heads / llm.kv_heads;
  out.chosen = chosen;
  out.pooling = cpu::pooling_of(spec.pooling);
  out.scale = spec.scale == ScoreScale::kOne ? 1.0f : 1.0f / std::sqrt(static_cast<float>(llm.head_dim));
  return out;
}

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_PAGE_CHOOSING_H_
