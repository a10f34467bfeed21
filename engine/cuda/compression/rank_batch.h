// RankBatch: heads that are scored, selected and moved by the same launches, as lists for the device.

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_RANK_BATCH_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_RANK_BATCH_H_

#include <algorithm>
#include <vector>

#include "engine/cuda/device/device_lists.h"
#include "kernels/cache_ops/compact_entries.h"
#include "kernels/scoring/cuda/attention_scores.h"
#include "kernels/scoring/cuda/scorer_state.h"
#include "kernels/select/select_entries.h"

namespace kvtwin::cuda {

struct RankBatch {
  // Of the head that stands at the same place in all lists.
  struct Head {
    size_t work = 0;           // of the step
    uint32_t head = 0;         // layer * kv_heads + head
    uint32_t first = 0;        // KV entries before what is ranked
    uint32_t rows = 0;         // ranked
    uint32_t forced_rows = 0;  // of these
    RowRange forced_ranges{};  // [begin, end) in `forced`

    uint32_t retained(uint32_t keep) const { return std::min(rows, forced_rows + keep); }
  };
  std::vector<Head> heads;
  std::vector<KvEntryHead> kv_entries;
  std::vector<KvEntryHead> stored;  // where they lie in pages, if that is elsewhere
  std::vector<RowRange> forced;
  std::vector<AttentionScoreHead> score_heads;  // scorers of attention, alone
  std::vector<uint32_t> visible;
  std::vector<StateScoreHead> scorer_state;  // scorers with state, alone
  std::vector<uint32_t> positions;
  std::vector<SelectHead> selects;  // once it is known how many stay
  std::vector<CompactHead> compacts;
  uint32_t rows_max = 0, queries_max = 0;

  struct OnDevice {
    ListAt<KvEntryHead> kv_entries;
    ListAt<RowRange> forced;
    ListAt<AttentionScoreHead> score_heads;
    ListAt<uint32_t> visible;
    ListAt<StateScoreHead> scorer_state;
    ListAt<uint32_t> positions;
    ListAt<SelectHead> selects;
    ListAt<CompactHead> compacts;
  } at;

  uint32_t count() const { return static_cast<uint32_t>(heads.size()); }
  void add_to(DeviceLists* lists) {
    at = {lists->add(kv_entries),   lists->add(forced),    lists->add(score_heads), lists->add(visible),
          lists->add(scorer_state), lists->add(positions), lists->add(selects),     lists->add(compacts)};
  }
  // Of the head at `index`: `keep` rows besides the forced ones stay; they are row numbers at retained_at.
  void choose(uint32_t index, uint32_t keep, uint32_t retained_at, uint32_t target_table) {
    const Head& head = heads[index];
    selects.push_back({head.rows, keep, head.forced_ranges.begin,
                       head.forced_ranges.end - head.forced_ranges.begin, retained_at});
    compacts.push_back({stored.empty() ? kv_entries[index] : stored[index], target_table, head.first,
                        retained_at, head.retained(keep)});
  }
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_RANK_BATCH_H_
