// Functions that caches of packed KV entries share: a step's rows in bf16 and in scratch pages, where a chunk
// reads its own rows exactly.

#ifndef KVTWIN_ENGINE_CPU_PACKED_PACKED_ROWS_H_
#define KVTWIN_ENGINE_CPU_PACKED_PACKED_ROWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cpu/packed/packed_store.h"
#include "kernels/common/kv_pages.h"

namespace kvtwin::cpu {

// Sets to[i] to x[i] rounded to the nearest bf16. May be in place.
void round_to_bf16(const float* x, std::span<float> to);

// Packs a KV entry of one head into slot `slot` of the page `bytes`, and sets *_out [head_dim] to the values
// that unpacking gives. In place if the pointers are equal. REQUIRES: the format is not int2.
void pack_and_read(Format format, const PageShape& shape, uint32_t slot, std::span<uint8_t> bytes,
                   const float* k, const float* v, float* k_out, float* v_out);

// Writes row `row` of the step to scratch slot `row`.
void set_scratch(PackedStore* store, uint32_t row, uint32_t layer, uint32_t head, const float* k,
                 const float* v);
// Appends the runs of rows [first, first + count).
void scratch_runs(const PackedStore& store, uint32_t first, uint32_t count,
                  std::vector<kernels::ReadRun>* runs);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_PACKED_PACKED_ROWS_H_
