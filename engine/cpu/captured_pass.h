// CapturedPass runs one context through the model, dense, and stores the queries, keys and values of all its
// layers, as input for calibrations. It uses no pages and no policy: one row per token, in order of position.
//
// Rows can be appended and removed again: responses, and probe tokens.

#ifndef KVTWIN_ENGINE_CPU_CAPTURED_PASS_H_
#define KVTWIN_ENGINE_CPU_CAPTURED_PASS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cpu/forward.h"
#include "kernels/common/view.h"

namespace kvtwin::cpu {

class CapturedPass final : private LayerAttention {
 public:
  // Allocates room for `tokens_max` rows: 4 (query_heads + 2 kv_heads) head_dim bytes each in every layer,
  // and 4 hidden bytes if `keep_hidden`. `forward` must outlive this.
  CapturedPass(Forward* forward, uint32_t tokens_max, bool keep_hidden = false);

  // Appends the rows of `tokens`. The values of a row do not depend on how rows are divided into calls.
  // REQUIRES: there is room.
  void extend(std::span<const uint32_t> tokens);
  // The same for rows [count][hidden] that are not tokens of the vocabulary: Judge Q's soft tokens.
  void extend_rows(const std::vector<float>& rows);
  // Removes all rows but the first `tokens`. REQUIRES: there are at least that many.
  void truncate(uint32_t tokens);

  uint32_t tokens() const { return tokens_; }
  uint32_t tokens_max() const { return tokens_max_; }
  const LlmSpec& llm() const { return forward_->llm(); }
  const RopeFrequencies& rope() const { return forward_->rope(); }

  // Rows [first, first + count) of one layer: rotated queries [query_heads][count][head_dim], rotated keys
  // and values [kv_heads][count][head_dim]. REQUIRES: the rows exist.
  kernels::HeadsView q(uint32_t layer, uint32_t first, uint32_t count) const;
  kernels::HeadsView k(uint32_t layer, uint32_t first, uint32_t count) const;
  kernels::HeadsView v(uint32_t layer, uint32_t first, uint32_t count) const;

  // Input of the layer's projections, [1][count][hidden]. REQUIRES: keep_hidden.
  kernels::HeadsView hidden_rows(uint32_t layer, uint32_t first, uint32_t count) const;

 private:
  struct Layer {
    std::vector<float> q, k, v;  // [heads][tokens_max][head_dim]
    std::vector<float> hidden;   // [tokens_max][hidden], if keep_hidden
  };

  void hidden(uint32_t layer, const float* x) override;

  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  kernels::HeadsView view(const std::vector<float>& rows, uint32_t heads, uint32_t first,
                          uint32_t count) const;

  Forward* const forward_;
  const uint32_t tokens_max_;
  const bool keep_hidden_;
  uint32_t tokens_ = 0;
  uint32_t adding_ = 0;  // rows being added
  std::vector<Layer> layers_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_CAPTURED_PASS_H_
