// PrefixRows stores, page by page, the rows from which a method derives data that pages do not hold
// (ShadowKV's keys before rotation, InfiniGen's queries and keys). A request that reuses another request's
// pages then derives the same data, in the same order and so bit for bit.
//
// A real host would store ShadowKV's keys unrotated instead of rotated, at no cost; the authors of InfiniGen
// calibrate directions offline. This engine uses additional memory for both.

#ifndef KVTWIN_ENGINE_COMMON_RETRIEVAL_PREFIX_ROWS_H_
#define KVTWIN_ENGINE_COMMON_RETRIEVAL_PREFIX_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace kvtwin::cpu {

class PrefixRows {
 public:
  // A row has two parts of a_floats and b_floats.
  PrefixRows(uint32_t page_tokens, uint64_t a_floats, uint64_t b_floats)
      : page_tokens_(page_tokens), a_floats_(a_floats), row_floats_(a_floats + b_floats) {}

  // Stores token `slot` of host page `host_copy`. Null: that part is not written.
  void put(uint32_t layer, uint32_t host_copy, uint32_t slot, const float* a, const float* b) {
    std::vector<float>& rows = rows_[{host_copy, layer}];
    rows.resize(page_tokens_ * row_floats_);
    float* const row = rows.data() + slot * row_floats_;
    if (a != nullptr) std::copy_n(a, a_floats_, row);
    if (b != nullptr) std::copy_n(b, row_floats_ - a_floats_, row + a_floats_);
  }
  // REQUIRES: put() was called for it.
  std::pair<const float*, const float*> get(uint32_t layer, uint32_t host_copy, uint32_t slot) const {
    const float* const row = rows_.at({host_copy, layer}).data() + slot * row_floats_;
    return {row, row + a_floats_};
  }
  // The host page was reallocated: its rows are removed.
  void forget(uint32_t host_copy) {
    const auto first = rows_.lower_bound({host_copy, 0});
    rows_.erase(first, rows_.lower_bound({host_copy + 1, 0}));
  }

 private:
  const uint32_t page_tokens_;
  const uint64_t a_floats_, row_floats_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> rows_;  // by (host page, layer)
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_PREFIX_ROWS_H_
