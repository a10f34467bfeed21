// D_k(b): the change of the attention output when only the tokens of tag k are stored in b bits (TriAxialKV;
// docs/design/methods/triaxialkv.md#calibration).
//
// One capture is one layer of one request: the queries of its new tokens, and exact K and V of all its
// tokens, after RoPE. For each tag present and b in {2, 4}, tokens of that tag are packed and unpacked (2
// bits: keys in groups of `group` same-tag tokens in order, the remainder in 4 bits, as in serving) and
// attention is computed again:   D = mean over queries |o - o~|^2, then the largest over query heads.
// Reference: O(tags * rows * KV entries * query_heads * head_dim).

#ifndef KVTWIN_KERNELS_QUANT_TRIAXIAL_CALIBRATE_H_
#define KVTWIN_KERNELS_QUANT_TRIAXIAL_CALIBRATE_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtwin::kernels {

constexpr uint32_t kTagCodes = 56;

struct AttentionCapture {
  std::span<const float> q;       // [rows][query_heads][head_dim]
  std::span<const float> k, v;    // [KV entries][kv_heads][head_dim]
  std::span<const uint8_t> tags;  // [KV entries], below 56
  uint32_t rows = 0, kv_entries = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
  uint32_t first_position = 0;  // row i sees KV entries [0, first_position + i]
  uint32_t group = 32;
};

struct TagLoss {
  uint32_t count = 0;  // KV entries of the tag; 0: not present
  double two_bits = 0, four_bits = 0;
};
using TagLosses = std::array<TagLoss, kTagCodes>;

TagLosses measure_tag_losses(const AttentionCapture& capture);

// The result of a calibration: D_k is summed over layers, after averaging over the requests in which the tag
// is present. N_k is summed over requests, except for instructions, which requests share: there it is the
// median.
struct TagTable {
  struct Entry {
    uint64_t count = 0;
    double two_bits = 0, four_bits = 0;
  };
  std::array<Entry, kTagCodes> tags{};
};
// losses[layer][request]. Counts are taken from layer 0. REQUIRES: rectangular and not empty.
TagTable combine_tag_losses(std::span<const std::vector<TagLosses>> losses);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_QUANT_TRIAXIAL_CALIBRATE_H_
