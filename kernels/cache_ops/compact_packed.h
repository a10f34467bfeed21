// compact_entries() where pages are packed: what is kept moves together as bytes, in place, so that nothing
// is packed twice. Row i of a head's target becomes row kept[i] of its source: key, value and scorer state.
//
// Formats that pack KV entry after KV entry: fp8, int4, fp4 (kernels/packed/packed_page.h). Tables, heads and
// what may be shared: compact_entries.h.
//
// Floor: 2 * token_bytes() read and as many written per kept KV entry that moves, at 4.69 TB/s, if there are
// heads enough for all SMs.

#ifndef KVTWIN_KERNELS_CACHE_OPS_COMPACT_PACKED_H_
#define KVTWIN_KERNELS_CACHE_OPS_COMPACT_PACKED_H_

#include "engine/base/kv_format.h"
#include "kernels/cache_ops/compact_entries.h"

namespace kvtwin {

struct CompactPackedArgs {
  KvEntryPool kv_entries;  // tables and pages alone: its pool is not read; not listed
  Format format = Format::kInt4;
  uint32_t group = 32;
  uint8_t* pool = nullptr;
  float* scorer_state = nullptr;       // moved too; null: there is none
  const CompactHead* heads = nullptr;  // [count]
  const uint32_t* retained = nullptr;
  uint32_t count = 0;
};
// cudaErrorInvalidValue: int2, whose keys share scales; bf16; rows that are no whole words.
cudaError_t compact_packed_entries(const CompactPackedArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_COMPACT_PACKED_H_
