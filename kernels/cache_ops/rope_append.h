// Rotates queries and keys by their positions and writes keys and values to pages.
//
// The rotation is that of Hugging Face: element i of a head's first half pairs with element i of its second,
//   (a, b) -> scale * (a cos t - b sin t, b cos t + a sin t),   t = position * inv_freq[i]
// with t in fp32. Source: docs/design/methods/conventions.md#symbols (keys are cached after the rotation).

#ifndef KVTWIN_KERNELS_CACHE_OPS_ROPE_APPEND_H_
#define KVTWIN_KERNELS_CACHE_OPS_ROPE_APPEND_H_

#include <cstdint>
#include <span>

#include "kernels/common/kv_pages.h"

namespace kvtwin::kernels {

// The slot of a row's KV entry, and the position by which the row is rotated.
struct AppendRow {
  uint32_t position = 0;
  uint32_t page = 0;
  uint32_t slot = 0;
};

struct RopeTable {
  std::span<const float> inv_freq;  // [head_dim / 2]
  float scale = 1;                  // factor of cosines and sines (YaRN's attention factor)
};

// x [heads][head_dim] of one row, in place.
void rope_ref(const RopeTable& rope, uint32_t position, uint32_t heads, uint32_t head_dim, float* x);

//   q [rows][query_heads][head_dim]   rotated in place
//   k [rows][kv_heads][head_dim]      rotated in place and written
//   v [rows][kv_heads][head_dim]      written
void rope_append_ref(const RopeTable& rope, std::span<const AppendRow> rows, uint32_t query_heads, float* q,
                     float* k, const float* v, const KvPages& kv);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_CACHE_OPS_ROPE_APPEND_H_
