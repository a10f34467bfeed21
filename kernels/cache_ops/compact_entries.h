// Moves the retained KV entries of a head together, in place: row i of the target is row retained[i] of the
// source, with key, value and scorer state. KV entries of a head stay in order of position
// (docs/design/methods/composition.md#data).
//
// Source and target may be one table, or share pages. `retained` ascends, so row i comes from row i or a
// later one, and one CTA moves a head from its first row to its last: it has read every row that it
// overwrites. Other heads use other blocks. gather_entries() is faster where source and target share nothing.
//
// Re-rotation (docs/design/methods/conventions.md#selection, `rerotate`): a key that moves is rotated by the
// angle between its new and its old position, in fp32, and rounded to bf16.
//
// Bound: 4 * head_dim bytes read and as many written per retained KV entry that moves, at 4.69 TB/s, given
// enough heads for all SMs.

#ifndef KVTWIN_KERNELS_CACHE_OPS_COMPACT_ENTRIES_H_
#define KVTWIN_KERNELS_CACHE_OPS_COMPACT_ENTRIES_H_

#include "kernels/common/kv_entry_heads.h"

namespace kvtwin {

struct CompactHead {
  KvEntryHead source;
  uint32_t target_table = 0;  // table of the target, same column
  uint32_t target_first = 0;
  uint32_t retained = 0;  // index of its first retained row in CompactArgs::retained
  uint32_t count = 0;     // number of its retained rows
};

struct CompactArgs {
  KvEntryPool kv_entries;  // of source and target; not listed
  __nv_bfloat16* pool = nullptr;
  float* scorer_state = nullptr;       // moved with the KV entries; null: none
  const CompactHead* heads = nullptr;  // [count]
  const uint32_t* retained = nullptr;
  const float* inv_freq =
      nullptr;  // [head_dim / 2]: re-rotates keys to their new rows; null: keys keep their phase
  uint32_t count = 0;
};
cudaError_t compact_entries(const CompactArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_COMPACT_ENTRIES_H_
