#include "engine/cpu/packed/packed_rows.h"

#include <algorithm>

#include "kernels/common/small_floats.h"
#include "kernels/packed/packed_page.h"
#include "kernels/quant/pack.h"

namespace kvtwin::cpu {

void round_to_bf16(const float* x, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = kernels::from_bf16(kernels::to_bf16(x[i]));
}

void pack_and_read(Format format, const PageShape& shape, uint32_t slot, std::span<uint8_t> bytes,
                   const float* k, const float* v, float* k_out, float* v_out) {
  const uint32_t d = shape.head_dim;
  kernels::pack_kv_entry(format, shape, slot, {k, d}, {v, d}, bytes);
  kernels::PackedRun kv_entry = kernels::page_run(format, shape, bytes, 1);
  const uint64_t offset = uint64_t{slot} * token_bytes(format, shape);
  kv_entry.k.data = static_cast<const uint8_t*>(kv_entry.k.data) + offset;
  kv_entry.v.data = static_cast<const uint8_t*>(kv_entry.v.data) + offset;
  kernels::unpack_side(kv_entry.k, true, 1, shape, {k_out, d});
  kernels::unpack_side(kv_entry.v, false, 1, shape, {v_out, d});
}

void set_scratch(PackedStore* store, uint32_t row, uint32_t layer, uint32_t head, const float* k,
                 const float* v) {
  const uint32_t page = store->shape().page_tokens;
  store->set_exact(store->scratch() + row / page, row % page, layer, head, k, v);
}

void scratch_runs(const PackedStore& store, uint32_t first, uint32_t count,
                  std::vector<kernels::ReadRun>* runs) {
  const uint32_t page = store.shape().page_tokens;
  for (uint32_t at = first; at < first + count;) {
    const uint32_t some = std::min(first + count - at, page - at % page);
    runs->push_back({static_cast<uint32_t>(store.scratch()) + at / page, at % page, some});
    at += some;
  }
}

}  // namespace kvtwin::cpu
