// KvEntryStore holds the values of KV entries where pages belong to head groups, and the rows of the current
// step that are staged.
//
// A page is column-major (docs/design/methods/tangram.md#ragged-pages): all keys of a column, then all its
// values, so that one head's KV entries of a page are contiguous. Staged rows follow the pages, in the column
// of their head. The staging area holds one layer: layers are computed one after another, and a staged chunk
// is compressed right after a layer's attention (docs/design/methods/tangram.md#chunks).
//
// Pages may be packed, KV entry by KV entry (PackedStore). A KV entry is packed once, when it is first
// written to a page, and moves as bytes; staged rows are exact. Page summaries need the keys before packing
// (docs/design/methods/composition.md#pairs); exact keys are then stored in addition.

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

// The format of KV entries in pages. bf16: unpacked (fp32 here).
struct KvEntryFormat {
  Format format = Format::kBf16;  // a format that packs each KV entry separately: not int2
  uint32_t group = 32;
  bool exact_keys = false;  // stored in addition to packed pages
};

class KvEntryStore {
 public:
  // `shape` must outlive it. step_rows: the most rows that are staged at once. Fails if there is no memory
  // for the pages, or if head_dim cannot be divided into groups.
  static Result<KvEntryStore> make(const KvMemory& memory, const LlmSpec& llm, const RequestTableShape* shape,
                                   uint32_t step_rows, const KvEntryFormat& format = {});

  bool packed() const { return packed_.has_value(); }
  // Heads are layer * kv_heads + head, here and below. Returns the pages of the head's column, as one head,
  // as attention reads them.
  kernels::KvPages pages(uint32_t head) const {
    const uint32_t column = shape_->groups.column_of(head);
    return packed_ ? packed_->layer(column) : kv_->layer(column);
  }
  // The staging slot of row `row` of the step.
  Place staged(uint32_t head, uint32_t row) const {
    const uint32_t of_layer = head % kv_heads_;
    return {stage_first_ + of_layer * stage_pages_ + row / page_tokens_, row % page_tokens_};
  }

  void write(uint32_t head, Place place, const float* key, const float* value);
  void move(uint32_t head, Place from, Place to);
  // The keys of a page before packing, in one head, [page_tokens][head_dim]. REQUIRES: exact_keys, if pages
  // are packed.
  const float* exact_keys(uint32_t head, uint32_t page) const;
  float* key(uint32_t head, Place place) const { return at(pages(head).keys, head, place); }
  const float* value(uint32_t head, Place place) const { return at(pages(head).values, head, place); }
  // A scorer's value of a KV entry (for example a gate), set when the KV entry was created.
  float* state_value(uint32_t head, Place place) const;

  // Appends the keys or values of `places`, contiguous: [places][head_dim].
  void keys(uint32_t head, std::span<const Place> places, std::vector<float>* out) const;
  void values(uint32_t head, std::span<const Place> places, std::vector<float>* out) const;
  void poison(PageId page);
  // Copies a whole page: KV entries, scorer values, exact keys.
  void copy(PageId source, PageId target);
  const RequestTableShape& shape() const { return *shape_; }

 private:
  KvEntryStore(KvStore scorer_state, const LlmSpec& llm, const RequestTableShape* shape, uint32_t stage_first,
               uint32_t stage_pages);
  float* at(float* base, uint32_t head, Place place) const;
  bool staged(Place place) const { return place.page >= stage_first_; }

  KvStore scorer_state_;
  std::optional<KvStore> kv_;          // unless packed
  std::optional<PackedStore> packed_;  // its layers are columns, with one head each
  std::optional<KvStore> exact_;       // keys only
  const RequestTableShape* shape_;
  uint32_t kv_heads_, head_dim_, page_tokens_, stage_first_, stage_pages_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_COMPRESSION_KV_ENTRY_STORE_H_
