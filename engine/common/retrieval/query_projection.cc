#include "engine/common/retrieval/query_projection.h"

#include "kernels/cache_ops/rope_append.h"
#include "kernels/dense/rms_norm.h"

namespace kvtwin::cpu {

QueryProjection::QueryProjection(const ModelWeights& weights, uint32_t layer)
    : heads_(weights.llm().query_heads),
      head_dim_(weights.llm().head_dim),
      norm_eps_(static_cast<float>(weights.llm().norm_eps)) {
  const LayerWeights& from = weights.layer(layer);
  const uint32_t out = heads_ * head_dim_, in = weights.llm().hidden;
  kernels::pack_begin(out, in, &weight_);
  kernels::pack_rows(read_floats(from.q).data(), 0, out, &weight_);
  if (from.q_bias.present()) bias_ = read_floats(from.q_bias);
  if (from.q_norm.present()) norm_ = read_floats(from.q_norm);
}

void QueryProjection::apply(const RopeFrequencies& rope, uint32_t position, const float* x, float* q) const {
  kernels::gemm_ref(weight_, bias_.empty() ? nullptr : bias_.data(), x, 1, q);
  if (!norm_.empty()) kernels::rms_norm_ref(q, norm_.data(), norm_eps_, heads_, head_dim_, q);
  kernels::rope_ref({rope.inverse, rope.scale}, position, heads_, head_dim_, q);
}

}  // namespace kvtwin::cpu
