// CellStore holds the values of cells where pages belong to head groups, and the rows of the step at hand
// that are not in pages, or not yet.
//
// A page is column-major (METHODS 2.6): all keys of a column, then all its values, so that one head's cells
// of a page are one piece. Staged rows lie behind the pages, in the column of their head, one layer deep:
// layers follow one another, and whoever compresses does so right after a layer's attention (METHODS 2.3).
//
// Pages may be packed, cell by cell (PackedStore). A cell is packed once, when it first comes into a page,
// and moves as bytes; staged rows are exact. Who summarises pages needs their keys as they were (METHODS
// 7.5): then keys wait beside the pages.

#ifndef KVTWIN_ENGINE_CPU_CELL_STORE_H_
#define KVTWIN_ENGINE_CPU_CELL_STORE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/kv_format.h"
#include "engine/base/result.h"
#include "engine/cpu/call_cells.h"
#include "engine/cpu/kv_cache.h"
#include "engine/cpu/kv_store.h"
#include "engine/cpu/packed_store.h"
#include "models/llm.h"

namespace kvtwin::cpu {

// How cells lie in pages. bf16: as they are (fp32 here).
struct CellFormat {
  Format format = Format::kBf16;  // of those that take cell after cell: not int2
  uint32_t group = 32;
  bool exact_keys = false;  // kept beside packed pages
};

class CellStore {
 public:
  // `shape` must outlive it. step_rows: the most that are staged at once. Wrong: no room for so many pages,
  // or heads that have no such groups.
  static Result<CellStore> make(const KvMemory& memory, const LlmSpec& llm, const CellShape* shape,
                                uint32_t step_rows, const CellFormat& format = {});

  bool packed() const { return packed_.has_value(); }
  // Heads are layer * kv_heads + head, here and below. The pages of the head's column, as one head, as they
  // are read.
  kernels::KvPages pages(uint32_t head) const {
    const uint32_t column = shape_->groups.column_of(head);
    return packed_ ? packed_->layer(column) : kv_->layer(column);
  }
  // Row `row` of the step, staged.
  Place staged(uint32_t head, uint32_t row) const {
    const uint32_t of_layer = head % kv_heads_;
    return {stage_first_ + of_layer * stage_pages_ + row / page_tokens_, row % page_tokens_};
  }

  void write(uint32_t head, Place place, const float* key, const float* value);
  void move(uint32_t head, Place from, Place to);
  // The keys of a page of the head before they were packed, [page_tokens][head_dim]. REQUIRES: exact_keys
  // where pages are packed.
  const float* exact_keys(uint32_t head, uint32_t page) const;
  float* key(uint32_t head, Place place) const { return at(pages(head).keys, head, place); }
  const float* value(uint32_t head, Place place) const { return at(pages(head).values, head, place); }
  // One number of a cell besides: what a gate gave it when it was made.
  float* mark(uint32_t head, Place place) const;

  // Packed [places][head_dim], appended.
  void keys(uint32_t head, std::span<const Place> places, std::vector<float>* out) const;
  void values(uint32_t head, std::span<const Place> places, std::vector<float>* out) const;
  void poison(PageId page);
  // All of a page: cells, marks, exact keys.
  void copy(PageId source, PageId target);
  const CellShape& shape() const { return *shape_; }

 private:
  CellStore(KvStore marks, const LlmSpec& llm, const CellShape* shape, uint32_t stage_first,
            uint32_t stage_pages);
  float* at(float* base, uint32_t head, Place place) const;
  bool staged(Place place) const { return place.page >= stage_first_; }

  KvStore marks_;
  std::optional<KvStore> kv_;          // unless packed
  std::optional<PackedStore> packed_;  // columns are its layers, of one head
  std::optional<KvStore> exact_;       // keys only
  const CellShape* shape_;
  uint32_t kv_heads_, head_dim_, page_tokens_, stage_first_, stage_pages_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_CELL_STORE_H_
