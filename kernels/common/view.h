// Tensor views that scorers take: strided rows per head, with an optional list of row indices.
//
// Views know nothing of pages, requests or layers. The owner of the pages gathers rows, or passes rows that
// already have a fixed stride. All views are fp32.

#ifndef KVTWIN_KERNELS_COMMON_VIEW_H_
#define KVTWIN_KERNELS_COMMON_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtwin::kernels {

// [heads][rows][dim]: row i of head h is at data + h * head_stride + r * row_stride, where r is i, or
// list[i], or list[h * rows + i] when each head has rows of its own. Strides are in floats.
struct HeadsView {
  const float* data = nullptr;
  uint32_t heads = 0;
  uint32_t rows = 0;
  uint32_t dim = 0;
  size_t head_stride = 0;
  size_t row_stride = 0;
  std::span<const uint32_t> list{};  // empty, [rows], or [heads][rows]

  const float* row(uint32_t head, uint32_t i) const {
    const size_t r = list.empty() ? i : list[list.size() == rows ? i : size_t{head} * rows + i];
    return data + head * head_stride + r * row_stride;
  }
};

// A view of contiguous [heads][rows][dim].
inline HeadsView packed_heads(std::span<const float> data, uint32_t heads, uint32_t rows, uint32_t dim) {
  return {data.data(), heads, rows, dim, size_t{rows} * dim, dim, {}};
}

// Heads [first, first + count) of a view.
inline HeadsView heads_of(const HeadsView& view, uint32_t first, uint32_t count) {
  HeadsView out = view;
  out.data = view.data + first * view.head_stride;
  out.heads = count;
  if (view.list.size() > view.rows) {
    out.list = view.list.subspan(size_t{first} * view.rows, size_t{count} * view.rows);
  }
  return out;
}

// Logical positions of a view's rows, ascending within a head. The list is empty (row i is at position i),
// [rows], or [heads][rows].
struct Positions {
  uint32_t rows = 0;
  std::span<const uint32_t> list{};

  uint32_t at(uint32_t head, uint32_t i) const {
    return list.empty() ? i : list[list.size() == rows ? i : size_t{head} * rows + i];
  }
};

// [heads][rows] scores, written by scorers and read by selection. Higher scores are retained.
struct ScoreView {
  float* data = nullptr;
  uint32_t heads = 0;
  uint32_t rows = 0;
  size_t head_stride = 0;  // in floats

  std::span<float> row(uint32_t head) const { return {data + head * head_stride, rows}; }
};

inline ScoreView packed_scores(std::span<float> data, uint32_t heads, uint32_t rows) {
  return {data.data(), heads, rows, rows};
}

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_COMMON_VIEW_H_
