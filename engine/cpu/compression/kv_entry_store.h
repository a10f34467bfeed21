// KvEntryStore holds the values of KV entries where pages belong to head groups, and the rows of the step at
// hand that are not in pages, or not yet.
//
// A page is column-major (docs/design/methods/tangram.md#ragged-pages): all keys of a column, then all its
// values, so that one head's KV entries of a page are one piece. Staged rows lie behind the pages, in the
// column of their head, one layer deep: layers follow one another, and whoever compresses does so right after
// a layer's attention (docs/design/methods/tangram.md#chunks).
//
// Pages may be packed, KV entry by KV entry (PackedStore). A KV entry is packed once, when it first comes
// into a page, and moves as bytes; staged rows are exact. Who summarises pages needs their keys as they were
// (docs/design/methods/composition.md#pairs): then keys wait beside the pages.

#ifndef KVTWIN_ENGINE_CPU_COMPRESSION_KV_ENTRY_STORE_H_
#define KVTWIN_ENGINE_CPU_COMPRESSION_KV_ENTRY_STORE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/kv_format.h"
#include "engine/base/result.h"
#include "engine/common/request_table.h"
#include "engine/cpu/kv_cache.h"
#include "engine/cpu/kv_store.h"
#include "engine/cpu/packed/packed_store.h"
#include "models/catalog/llm.h"

namespace kvtwin::cpu {

// How KV entries lie in pages. bf16: as they are (fp32 here).
struct KvEntryFormat {
  Format format = Format::kBf16;  // of those that take KV entry after KV entry: not int2
  uint32_t group = 32;
  bool exact_keys = false;  // kept beside packed pages
};

class KvEntryStore {
 public:
  // `shape` must outlive it. step_rows: the most that are staged at once. Wrong: no room for so many pages,
  // or heads that have no such groups.
  static Result<KvEntryStore> make(const KvMemory& memory, const LlmSpec& llm, const RequestTableShape* shape,
                                   uint32_t step_rows, const KvEntryFormat& format = {});

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
  // One number of a KV entry besides: what a gate gave it when it was made.
  float* state_value(uint32_t head, Place place) const;

  // Packed [places][head_dim], appended.
  void keys(uint32_t head, std::span<const Place> places, std::vector<float>* out) const;
  void values(uint32_t head, std::span<const Place> places, std::vector<float>* out) const;
  void poison(PageId page);
  // All of a page: KV entries, marks, exact keys.
  void copy(PageId source, PageId target);
  const RequestTableShape& shape() const { return *shape_; }

 private:
  KvEntryStore(KvStore scorer_state, const LlmSpec& llm, const RequestTableShape* shape, uint32_t stage_first,
               uint32_t stage_pages);
  float* at(float* base, uint32_t head, Place place) const;
  bool staged(Place place) const { return place.page >= stage_first_; }

  KvStore scorer_state_;
  std::optional<KvStore> kv_;          // unless packed
  std::optional<PackedStore> packed_;  // columns are its layers, of one head
  std::optional<KvStore> exact_;       // keys only
  const RequestTableShape* shape_;
  uint32_t kv_heads_, head_dim_, page_tokens_, stage_first_, stage_pages_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_COMPRESSION_KV_ENTRY_STORE_H_
