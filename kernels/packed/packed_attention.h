// Attention of one query head over packed KV entries: the definition of the mixed-format decode kernels.
//
//   out = softmax(scale * q . K) V over the KV entries of all runs, in any order (keys carry their phase).
//
// Each run has one format per side and gives one partial result (m, l, o), merged by log-sum-exp: no split
// mixes formats (docs/design/methods/triaxialkv.md#serving). Keys quantised per channel are never
// dequantised: with k_c = code_c * scale_c + zero_c,  q . k = sum code_c (q_c scale_c) + sum q_c zero_c, and
// the second sum is one number per group of tokens. O(KV entries * head_dim).

#ifndef KVTWIN_KERNELS_PACKED_PACKED_ATTENTION_H_
#define KVTWIN_KERNELS_PACKED_PACKED_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/kv_format.h"

namespace kvtwin::kernels {

enum class Rows : uint8_t {
  kExact,   // float [KV entries][head_dim]
  kBf16,    // low byte first
  kFp8,     // E4M3, scale 1
  kFp4,     // pack_fp4
  kInt4,    // pack_token
  kInt2,    // pack_token; values only
  kGroup2,  // pack_key_group(2): groups of shape.group KV entries; keys only
};

// `data`: `kv_entries` consecutive KV entries in format `rows`.
struct PackedSide {
  Rows rows{};
  const void* data = nullptr;
};
struct PackedRun {
  PackedSide k, v;
  uint32_t kv_entries = 0;  // kGroup2: a multiple of shape.group
};

// Partial softmax: m = largest logit, l = sum of exp(logit - m), o = sum of the values with these weights.
struct Partial {
  float m = 0;
  float l = 0;             // 0: no KV entries
  std::vector<float> o{};  // [head_dim]
};
Partial attend_run(std::span<const float> q, float scale, const PackedRun& run, const PageShape& shape);
Partial merge(const Partial& a, const Partial& b);

// q, out: [head_dim]. Without any KV entry `out` is zero.
void attend_packed(std::span<const float> q, float scale, std::span<const PackedRun> runs,
                   const PageShape& shape, std::span<float> out);

// One side of a run, dequantised: out [KV entries][head_dim].
void unpack_side(const PackedSide& side, bool keys, uint32_t kv_entries, const PageShape& shape,
                 std::span<float> out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_PACKED_PACKED_ATTENTION_H_
