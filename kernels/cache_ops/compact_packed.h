// compact_entries() for packed pages: retained KV entries move as bytes, in place, so nothing is quantised
// twice. Row i of a head's target is row retained[i] of its source: key, value and scorer state.
//
// Supports formats that pack each KV entry separately: fp8, int4, fp4 (kernels/packed/packed_page.h). Tables,
// heads and sharing: compact_entries.h.
//
// Bound: 2 * token_bytes() read and as many written per retained KV entry that moves, at 4.69 TB/s, given
// enough heads for all SMs.

#ifndef KVTWIN_KERNELS_CACHE_OPS_COMPACT_PACKED_H_
#define KVTWIN_KERNELS_CACHE_OPS_COMPACT_PACKED_H_

#include "engine/base/kv_format.h"
#include "kernels/cache_ops/compact_entries.h"

namespace kvtwin {

struct CompactPackedArgs {
  KvEntryPool kv_entries;  // only tables and page sizes are used, not its pool; not listed
  Format format = Format::kInt4;
  uint32_t group = 32;
  uint8_t* pool = nullptr;
  float* scorer_state = nullptr;       // moved with the KV entries; null: none
  const CompactHead* heads = nullptr;  // [count]
  const uint32_t* retained = nullptr;
  uint32_t count = 0;
};
// Returns cudaErrorInvalidValue for int2 (its keys share scales), for bf16, and if a row is not whole words.
cudaError_t compact_packed_entries(const CompactPackedArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_COMPACT_PACKED_H_
