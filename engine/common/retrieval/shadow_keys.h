// ShadowKeys holds ShadowKV's low-rank keys of one layer of a request
// (docs/design/methods/freekv.md#timelines).
//
// Keys before rotation, all KV heads concatenated [kv_heads * head_dim], become coordinates in the leading
// `rank` directions of all keys so far. They are factorised when the prompt is complete and, as in FreeKV's
// evaluation, again after every window of new tokens, at the end of a step, for the steps that follow;
// between factorisations, new keys are projected on the existing directions. This object keeps the exact
// keys, which a real system would fetch from the host.

#ifndef KVTWIN_ENGINE_COMMON_RETRIEVAL_SHADOW_KEYS_H_
#define KVTWIN_ENGINE_COMMON_RETRIEVAL_SHADOW_KEYS_H_

#include <cstdint>
#include <vector>

#include "models/catalog/llm.h"
#include "models/catalog/rope.h"

namespace kvtwin::cpu {

class ShadowKeys {
 public:
  // `unit`: for benches: directions are unit vectors, which cost nothing. REQUIRES: 0 < rank <= kv_heads *
  // head_dim.
  ShadowKeys(const LlmSpec& llm, uint32_t rank, uint32_t refresh_tokens, bool unit = false);

  // The next token's key, [kv_heads][head_dim], not rotated.
  void add(const float* key);
  // Computes coordinates of all added keys, in directions that are at most refresh_tokens old.
  void factorise();
  // The reconstructed and rotated key of `token` in one head, [head_dim]. REQUIRES: factorise() was called
  // after add() of the token.
  void rebuild(const RopeFrequencies& rope, uint32_t token, uint32_t head, float* key) const;

  // What factorise() made: directions [rank][kv_heads * head_dim], and [known()][rank] coordinates in them.
  // refreshes() counts the changes of the directions.
  const std::vector<float>& directions() const { return basis_; }
  const std::vector<float>& coordinates() const { return coordinates_; }
  uint32_t known() const { return known_; }
  uint32_t refreshes() const { return refreshes_; }

 private:
  void refresh();

  const uint32_t head_dim_, width_, rank_, refresh_tokens_;
  const bool unit_;
  std::vector<float> keys_;         // [tokens][width]
  std::vector<double> gram_;        // [width][width]
  std::vector<float> basis_;        // [rank][width]
  std::vector<float> coordinates_;  // [known tokens][rank]
  uint32_t tokens_ = 0, known_ = 0, refreshed_at_ = 0, refreshes_ = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_SHADOW_KEYS_H_
