// PartialKeys holds InfiniGen's skewed partial keys of one layer of a request
// (docs/design/methods/freekv.md#timelines).
//
// Per KV head, queries and keys are rotated into the directions of the prompt's own queries (the eigenvectors
// of their Gram matrix), which preserves all products; a few columns then approximate q.k. The selected
// columns have the largest product of the queries' and the keys' energy over the prompt. (The authors
// calibrate the directions offline and select columns by sums of magnitudes.) Keys and queries already have
// their positional rotation; because it lies between weights and products, the skew cannot be merged into the
// weights.

#ifndef KVTWIN_ENGINE_COMMON_RETRIEVAL_PARTIAL_KEYS_H_
#define KVTWIN_ENGINE_COMMON_RETRIEVAL_PARTIAL_KEYS_H_

#include <cstdint>
#include <vector>

#include "models/catalog/llm.h"

namespace kvtwin::cpu {

class PartialKeys {
 public:
  // The number of columns per head follows from `columns_q32` and is at least 1. `unit`: for benches:
  // directions are unit vectors, which cost nothing.
  PartialKeys(const LlmSpec& llm, int64_t columns_q32, bool unit = false);

  // The next token: q [query_heads][head_dim], k [kv_heads][head_dim], both rotated.
  void add(const float* q, const float* k);
  // The prompt is complete: selects the columns from all tokens so far.
  void choose_columns();

  uint32_t columns() const { return columns_; }
  // The partial key of a token in one head, [columns()].
  const float* key(uint32_t token, uint32_t head) const {
    return partial_.data() + (size_t{token} * heads_ + head) * columns_;
  }
  // Projects a query q [head_dim] of a head's group: partial [columns()].
  void project(uint32_t head, const float* q, float* partial) const;

  // What choose_columns() made: [kv_heads][columns][head_dim], and the partial keys of all tokens,
  // [tokens][kv_heads][columns].
  const std::vector<float>& directions() const { return directions_; }
  const std::vector<float>& keys() const { return partial_; }

 private:
  const uint32_t heads_, group_, dim_, columns_;
  const bool unit_;
  std::vector<double> queries_, keys_gram_;  // [kv_heads][head_dim][head_dim]
  std::vector<float> keys_;                  // [tokens][kv_heads][head_dim], until columns are selected
  std::vector<float> directions_;            // [kv_heads][columns][head_dim]
  std::vector<float> partial_;               // [tokens][kv_heads][columns]
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_PARTIAL_KEYS_H_
