#include "engine/cpu/compression/kv_entry_store.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::cpu {
namespace {

// Describes a page of columns as a KvStore page whose layers are columns, with one head each.
LlmSpec columns_of(const LlmSpec& llm, uint32_t columns, uint32_t dim) {
  LlmSpec out = llm;
  out.layers = columns;
  out.kv_heads = 1;
  out.head_dim = dim;
  return out;
}

}  // namespace

KvEntryStore::KvEntryStore(KvStore scorer_state, const LlmSpec& llm, const RequestTableShape* shape,
                           uint32_t stage_first, uint32_t stage_pages)
    : scorer_state_(std::move(scorer_state)),
      shape_(shape),
      kv_heads_(llm.kv_heads),
      head_dim_(llm.head_dim),
      page_tokens_(shape->tables.page_tokens),
      stage_first_(stage_first),
      stage_pages_(stage_pages) {}

Result<KvEntryStore> KvEntryStore::make(const KvMemory& memory, const LlmSpec& llm,
                                        const RequestTableShape* shape, uint32_t step_rows,
                                        const KvEntryFormat& format) {
  const uint32_t columns = shape->groups.heads_per_group();
  const uint32_t stage_pages = div_ceil(std::max(step_rows, 1u), memory.page_tokens);
  const auto pages_all = static_cast<uint32_t>(memory.pages());
  const uint64_t pages = uint64_t{pages_all} + uint64_t{stage_pages} * llm.kv_heads;
  const LlmSpec of_columns = columns_of(llm, columns, llm.head_dim);
  Result<KvStore> scorer_state = KvStore::make(columns_of(llm, columns, 1), memory.page_tokens, pages);
  if (!scorer_state) return tl::unexpected<Error>(scorer_state.error());
  KvEntryStore out(std::move(*scorer_state), llm, shape, pages_all, stage_pages);
  if (format.format == Format::kBf16) {
    Result<KvStore> kv = KvStore::make(of_columns, memory.page_tokens, pages);
    if (!kv) return tl::unexpected<Error>(kv.error());
    out.kv_.emplace(std::move(*kv));
    return out;
  }
  KVT_CHECK(format.format != Format::kInt2 && !shape->rerotate);
  const PageShape page{memory.page_tokens, llm.head_dim, format.group};
  const PackedPool pool{format.format, pages_all};
  Result<PackedStore> packed =
      PackedStore::make(of_columns, page, {&pool, 1}, uint64_t{stage_pages} * llm.kv_heads);
  if (!packed) return tl::unexpected<Error>(packed.error());
  out.packed_.emplace(std::move(*packed));
  if (!format.exact_keys) return out;
  Result<KvStore> exact = KvStore::make(of_columns, memory.page_tokens, pages_all);
  if (!exact) return tl::unexpected<Error>(exact.error());
  out.exact_.emplace(std::move(*exact));
  return out;
}

float* KvEntryStore::at(float* base, uint32_t head, Place place) const {
  return base + pages(head).at(place.page, 0, place.slot);
}

float* KvEntryStore::state_value(uint32_t head, Place place) const {
  const kernels::KvPages scorer_state = scorer_state_.layer(shape_->groups.column_of(head));
  return scorer_state.keys + scorer_state.at(place.page, 0, place.slot);
}

void KvEntryStore::write(uint32_t head, Place place, const float* key_row, const float* value_row) {
  const kernels::KvPages to = pages(head);
  if (!packed_ || staged(place)) {
    std::copy_n(key_row, head_dim_, at(to.keys, head, place));
    std::copy_n(value_row, head_dim_, at(to.values, head, place));
    return;
  }
  const uint32_t column = shape_->groups.column_of(head);
  packed_->put(PageId{place.page}, place.slot, column, 0, key_row, value_row);
  if (exact_) std::copy_n(key_row, head_dim_, at(exact_->layer(column).keys, head, place));
}

void KvEntryStore::move(uint32_t head, Place from, Place to) {
  if (from.page == to.page && from.slot == to.slot) return;
  *state_value(head, to) = *state_value(head, from);
  if (!packed_ || staged(from)) return write(head, to, key(head, from), value(head, from));
  const uint32_t column = shape_->groups.column_of(head);
  packed_->move(PageId{from.page}, from.slot, PageId{to.page}, to.slot, column, 0);
  if (!exact_) return;
  float* const keys_of = exact_->layer(column).keys;
  std::copy_n(at(keys_of, head, from), head_dim_, at(keys_of, head, to));
}

const float* KvEntryStore::exact_keys(uint32_t head, uint32_t page) const {
  KVT_CHECK(!packed_ || exact_);
  return at(exact_ ? exact_->layer(shape_->groups.column_of(head)).keys : pages(head).keys, head, {page, 0});
}

void KvEntryStore::poison(PageId page) {
  if (packed_) packed_->poison(page);
  if (kv_) kv_->poison(page);
  if (exact_) exact_->poison(page);
}

void KvEntryStore::copy(PageId source, PageId target) {
  if (packed_) packed_->copy(source, target);
  if (kv_) kv_->copy(source, target);
  if (exact_) exact_->copy(source, target);
  scorer_state_.copy(source, target);
}

void KvEntryStore::keys(uint32_t head, std::span<const Place> places, std::vector<float>* out) const {
  for (const Place place : places) out->insert(out->end(), key(head, place), key(head, place) + head_dim_);
}

void KvEntryStore::values(uint32_t head, std::span<const Place> places, std::vector<float>* out) const {
  for (const Place place : places)
    out->insert(out->end(), value(head, place), value(head, place) + head_dim_);
}

}  // namespace kvtwin::cpu
