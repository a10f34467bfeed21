// QueryProjection computes the queries that a layer would have if its input were another layer's. InfiniGen
// selects for the next layer from this layer's input (docs/design/methods/freekv.md#timelines,
// re-projection).

#ifndef KVTWIN_ENGINE_COMMON_RETRIEVAL_QUERY_PROJECTION_H_
#define KVTWIN_ENGINE_COMMON_RETRIEVAL_QUERY_PROJECTION_H_

#include <cstdint>
#include <vector>

#include "kernels/dense/gemm.h"
#include "models/catalog/rope.h"
#include "models/weights/weights.h"

namespace kvtwin::cpu {

class QueryProjection {
 public:
  QueryProjection(const ModelWeights& weights, uint32_t layer);
  // x [hidden], normed; q [query_heads][head_dim], rotated by `position`.
  void apply(const RopeFrequencies& rope, uint32_t position, const float* x, float* q) const;

 private:
  const uint32_t heads_, head_dim_;
  const float norm_eps_;
  kernels::PackedMatrix weight_;
  std::vector<float> bias_, norm_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_QUERY_PROJECTION_H_
