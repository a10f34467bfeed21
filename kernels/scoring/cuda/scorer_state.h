// Marks: one fp32 number of a KV entry besides its key and value, in a pool of its own
// ([blocks][page_tokens]). H2O's accumulators, RaaS's stamps, the gates of FastKVzip and TrimKV
// (kv_entry_gates.h); they move with their KV entries (compact_entries.h) and travel with their pages.
//
// Floor: 4 bytes read and 4 written per KV entry, at 4.69 TB/s.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_SCORER_STATE_H_
#define KVTWIN_KERNELS_SCORING_CUDA_SCORER_STATE_H_

#include "kernels/cache_ops/rope_append_cuda.h"
#include "kernels/common/kv_entry_heads.h"

namespace kvtwin {

struct NewStateArgs {
  const AppendSlot* slots = nullptr;    // [rows][kv_heads]
  const float* values = nullptr;        // the same; null: the next line
  const uint32_t* positions = nullptr;  // [rows]: position + 1, as time; null: 0
  float* scorer_state = nullptr;
  uint32_t rows = 0, kv_heads = 0, page_tokens = 0;
};
cudaError_t write_state(const NewStateArgs& args, cudaStream_t stream);

enum class StateScore : uint8_t {
  kPlain,    // the state itself
  kPerRow,   // divided by the number of query rows that could see it: now - position (kvpress)
  kDecayed,  // times now - position (TrimKV: the state is log beta, now is tokens seen + 1)
};
struct StateScoreHead {
  KvEntryHead kv_entries;
  uint32_t positions = 0;  // where its rows' positions are
  uint32_t stays = 0;      // the last rows, which must stay: infinity
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

// ---- for scorers that run on the host: rows of KV entries as packed fp32

struct ReadEntriesArgs {
  KvEntryPool kv_entries;
  const KvEntryHead* heads = nullptr;  // [count]
  float* keys = nullptr;               // row i of head h at (h * stride + i) * head_dim; null: not wanted
  float* values = nullptr;             // the same
  uint64_t stride = 0;
  uint32_t count = 0, rows_max = 0;
};
cudaError_t read_entries(const ReadEntriesArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SCORING_CUDA_SCORER_STATE_H_
