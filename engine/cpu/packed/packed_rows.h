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

// Writes row `row` of the step to scratch slot `row`.
void set_scratch(PackedStore* store, uint32_t row, uint32_t layer, uint32_t head, const float* k,
                 const float* v);
// Appends the runs of rows [first, first + count).
void scratch_runs(const PackedStore& store, uint32_t first, uint32_t count,
                  std::vector<kernels::ReadRun>* runs);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_PACKED_PACKED_ROWS_H_
