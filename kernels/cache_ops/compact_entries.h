// What is kept moves together, in place: row i of a head's target becomes row kept[i] of its source, key,
// value and scorer state. docs/design/methods/composition.md#data: KV entries of a head stay in order of
// position.
//
// Source and target may be one table, or share pages: kept ascends, so row i comes from row i or further on,
// and a CTA has a head from its first row to its last: what it writes it has read. (Other heads' KV entries
// lie in other blocks.) gather_entries() is faster where nothing is shared.
//
// Re-rotation (docs/design/methods/conventions.md#selection, `rerotate`): a key that moves is turned by the
// angle between its place and its old phase, in fp32, rounded to bf16.
//
// Floor: 4 * head_dim bytes read and as many written per kept KV entry that moves, at 4.69 TB/s, if there are
// heads enough for all SMs.

#ifndef KVTWIN_KERNELS_CACHE_OPS_COMPACT_ENTRIES_H_
#define KVTWIN_KERNELS_CACHE_OPS_COMPACT_ENTRIES_H_

#include "kernels/common/kv_entry_heads.h"

namespace kvtwin {

struct CompactHead {
  KvEntryHead source;
  uint32_t target_table = 0;  // of the same column
  uint32_t target_first = 0;
  uint32_t retained = 0;  // where its kept rows are
  uint32_t count = 0;     // of them
};

struct CompactArgs {
  KvEntryPool kv_entries;  // of source and target; not listed
  __nv_bfloat16* pool = nullptr;
  float* scorer_state = nullptr;       // moved too; null: there is none
  const CompactHead* heads = nullptr;  // [count]
  const uint32_t* retained = nullptr;
  const float* inv_freq = nullptr;  // [head_dim / 2]: keys are rotated by their places; null: keep phase
  uint32_t count = 0;
};
cudaError_t compact_entries(const CompactArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_COMPACT_ENTRIES_H_
