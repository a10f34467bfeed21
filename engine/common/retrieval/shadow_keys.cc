#include "engine/common/retrieval/shadow_keys.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cache_ops/rope_append.h"
#include "kernels/dense/low_rank.h"

namespace kvtwin::cpu {

ShadowKeys::ShadowKeys(const LlmSpec& llm, uint32_t rank, uint32_t refresh_tokens, bool unit)
    : head_dim_(llm.head_dim),
      width_(llm.kv_heads * llm.head_dim),
      rank_(rank),
      refresh_tokens_(refresh_tokens),
      unit_(unit),
      gram_(unit ? 0 : size_t{width_} * width_) {
  KVT_CHECK(rank > 0 && rank <= width_);
}

void ShadowKeys::add(const float* key) {
  keys_.insert(keys_.end(), key, key + width_);
  if (!unit_) kernels::add_gram_ref(key, 1, width_, gram_.data());
  ++tokens_;
}

void ShadowKeys::factorise() {
  KVT_CHECK(tokens_ > 0);
  if (basis_.empty() || (!unit_ && tokens_ - refreshed_at_ >= refresh_tokens_)) refresh();
  coordinates_.resize(size_t{tokens_} * rank_);
  for (; known_ < tokens_; ++known_) {
    if (unit_) {
      std::copy_n(keys_.data() + size_t{known_} * width_, rank_,
                  coordinates_.data() + size_t{known_} * rank_);
      continue;
    }
    kernels::project_ref(keys_.data() + size_t{known_} * width_, basis_.data(), rank_, width_,
                         coordinates_.data() + size_t{known_} * rank_);
  }
}

void ShadowKeys::refresh() {
  if (unit_) {
    basis_.assign(size_t{rank_} * width_, 0.0f);
    for (uint32_t r = 0; r < rank_; ++r) basis_[size_t{r} * width_ + r] = 1;
    ++refreshes_;
    return;
  }
  const kernels::Eigen eigen = kernels::symmetric_eigen_ref(width_, gram_);
  basis_.assign(eigen.vectors.begin(),
                eigen.vectors.begin() + static_cast<ptrdiff_t>(size_t{rank_} * width_));
  known_ = 0;
  refreshed_at_ = tokens_;
  ++refreshes_;
}

void ShadowKeys::rebuild(const RopeFrequencies& rope, uint32_t token, uint32_t head, float* key) const {
  KVT_CHECK(token < known_);
  kernels::rebuild_ref(coordinates_.data() + size_t{token} * rank_, basis_.data(), rank_, width_,
                       head * head_dim_, head_dim_, key);
  kernels::rope_ref({rope.inverse, rope.scale}, token, 1, head_dim_, key);
}

}  // namespace kvtwin::cpu
