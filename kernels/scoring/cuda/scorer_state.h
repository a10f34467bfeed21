// Scorer state: one fp32 number per KV entry, in a pool [blocks][page_tokens] parallel to the pages: H2O's
// accumulators, RaaS's stamps, the gates of FastKVzip and TrimKV (kv_entry_gates.h). It moves with its KV
// entry (compact_entries.h) and is copied with its page.
//
// Bound: 4 bytes read and 4 written per KV entry, at 4.69 TB/s.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_SCORER_STATE_H_
#define KVTWIN_KERNELS_SCORING_CUDA_SCORER_STATE_H_

#include "kernels/cache_ops/rope_append_cuda.h"
#include "kernels/common/kv_entry_heads.h"

namespace kvtwin {

struct NewStateArgs {
  const AppendSlot* slots = nullptr;    // [rows][kv_heads]; block kNoBlock: no state is written
  const float* values = nullptr;        // [rows][kv_heads]; null: from positions
  const uint32_t* positions = nullptr;  // [rows]: the state is position + 1, the time; null: 0
  float* scorer_state = nullptr;
  uint32_t rows = 0, kv_heads = 0, page_tokens = 0;
};
cudaError_t write_state(const NewStateArgs& args, cudaStream_t stream);

enum class StateScore : uint8_t {
  kPlain,    // the state itself
  kPerRow,   // divided by the query rows that see the entry: now - position (kvpress)
  kDecayed,  // times now - position (TrimKV: the state is log beta, now is tokens seen + 1)
};
struct StateScoreHead {
  KvEntryHead kv_entries;
  uint32_t positions = 0;  // index of its rows' positions in StateScoreArgs::positions
  uint32_t stays = 0;      // the last rows, which must be retained: infinity
};
struct StateScoreArgs {
  KvEntryPool kv_entries;
  const StateScoreHead* heads = nullptr;  // [count]
  const float* scorer_state = nullptr;
  const uint32_t* positions = nullptr;
  float* scores = nullptr;  // row i of head h at h * stride + i
  uint64_t stride = 0;
  uint32_t count = 0, rows_max = 0, now = 0;
  StateScore kind = StateScore::kPlain;
};
cudaError_t score_from_state(const StateScoreArgs& args, cudaStream_t stream);

// out[i] = mean over heads of scores[h * stride + i]: one score per token (IntentKV's layouts).
cudaError_t mean_scores(const float* scores, uint64_t stride, uint32_t heads, uint32_t rows, float* out,
                        cudaStream_t stream);

// ---- for scorers on the host: rows of KV entries as contiguous fp32

struct ReadEntriesArgs {
  KvEntryPool kv_entries;
  const KvEntryHead* heads = nullptr;  // [count]
  float* keys = nullptr;               // row i of head h at (h * stride + i) * head_dim; null: not written
  float* values = nullptr;             // the same for values
  uint64_t stride = 0;
  uint32_t count = 0, rows_max = 0;
};
cudaError_t read_entries(const ReadEntriesArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SCORING_CUDA_SCORER_STATE_H_
