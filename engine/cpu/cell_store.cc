#include "engine/cpu/cell_store.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::cpu {
namespace {

// A page of columns is what KvStore takes for a page of layers of one head.
LlmSpec columns_of(const LlmSpec& llm, uint32_t columns, uint32_t dim) {
  LlmSpec out = llm;
  out.layers = columns;
  out.kv_heads = 1;
  out.head_dim = dim;
  return out;
}

}  // namespace

CellStore::CellStore(KvStore kv, KvStore marks, const LlmSpec& llm, const CellShape* shape,
                     uint32_t stage_first, uint32_t stage_pages)
    : kv_(std::move(kv)),
      marks_(std::move(marks)),
      shape_(shape),
      kv_heads_(llm.kv_heads),
      head_dim_(llm.head_dim),
      page_tokens_(shape->tables.page_tokens),
      stage_first_(stage_first),
      stage_pages_(stage_pages) {}

Result<CellStore> CellStore::make(const KvMemory& memory, const LlmSpec& llm, const CellShape* shape,
                                  uint32_t step_rows) {
  const uint32_t columns = shape->groups.heads_per_group();
  const uint32_t stage_pages = div_ceil(std::max(step_rows, 1u), memory.page_tokens);
  const uint64_t pages = uint64_t{memory.pages_gpu} + uint64_t{stage_pages} * llm.kv_heads;
  Result<KvStore> kv = KvStore::make(columns_of(llm, columns, llm.head_dim), memory.page_tokens, pages);
  if (!kv) return tl::unexpected<Mistake>(kv.error());
  Result<KvStore> marks = KvStore::make(columns_of(llm, columns, 1), memory.page_tokens, pages);
  if (!marks) return tl::unexpected<Mistake>(marks.error());
  return CellStore(std::move(*kv), std::move(*marks), llm, shape, memory.pages_gpu, stage_pages);
}

float* CellStore::at(float* base, uint32_t head, Place place) const {
  return base + pages(head).at(place.page, 0, place.slot);
}

float* CellStore::mark(uint32_t head, Place place) const {
  const kernels::KvPages marks = marks_.layer(shape_->groups.column_of(head));
  return marks.keys + marks.at(place.page, 0, place.slot);
}

void CellStore::write(uint32_t head, Place place, const float* key_row, const float* value_row) {
  const kernels::KvPages to = pages(head);
  std::copy_n(key_row, head_dim_, at(to.keys, head, place));
  std::copy_n(value_row, head_dim_, at(to.values, head, place));
}

void CellStore::move(uint32_t head, Place from, Place to) {
  if (from.page == to.page && from.slot == to.slot) return;
  write(head, to, key(head, from), value(head, from));
  *mark(head, to) = *mark(head, from);
}

void CellStore::keys(uint32_t head, std::span<const Place> places, std::vector<float>* out) const {
  for (const Place place : places) out->insert(out->end(), key(head, place), key(head, place) + head_dim_);
}

void CellStore::values(uint32_t head, std::span<const Place> places, std::vector<float>* out) const {
  for (const Place place : places)
    out->insert(out->end(), value(head, place), value(head, place) + head_dim_);
}

}  // namespace kvtwin::cpu
