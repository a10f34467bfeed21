// DeviceScorer captures what a scorer needs while rows are computed, and scores what a compression ranks:
// what cpu::KvEntryScorer does, on the device.
//
// Query windows are copied aside as they go by; what belongs to a KV entry (accumulators, stamps, gates) is
// its scorer state (kv_entry_memory.h). Kernels: score_keys_cuda.h, attention_scores.h, scorer_state.h.
// Scorers that use positions alone are computed on the host, where positions are.

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_DEVICE_SCORER_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_DEVICE_SCORER_H_

#include <memory>
#include <span>
#include <vector>

#include "engine/common/ranking.h"
#include "engine/common/scorer_weights.h"
#include "engine/cpu/compression/kv_entry_scorer.h"
#include "engine/cuda/compression/kv_entry_gates.h"
#include "engine/cuda/compression/kv_entry_memory.h"
#include "engine/cuda/compression/rank_batch.h"
#include "engine/cuda/kv_cache.h"
#include "engine/methods/scorer_spec.h"
#include "kernels/scoring/cuda/scorer_state.h"
#include "kernels/scoring/score.h"

namespace kvtwin::cuda {

class DeviceScorer {
 public:
  // Query rows of a request, all layers: [2][layers][room][query_heads][head_dim]; the newest are behind one
  // another on side `side`.
  struct State {
    Buffer queries;
    uint32_t side = 0, room = 0;   // rows that fit a side
    std::vector<uint32_t> phases;  // of the rows on it, ascending
  };

  using Config = cpu::ScorerConfig;

  // All must outlive it. `rows`: of one step, at most. Wrong: no room for weights.
  static Result<DeviceScorer> make(const Config& config, const LlmSpec* llm, const KvEntryMemory* memory,
                                   const cpu::ScorerWeights& weights, uint32_t rows);

  bool has_scorer_state() const;
  bool score_heads() const;  // at the queries that were captured
  bool scorer_state_is_gates() const;
  bool asks_positions() const;  // scores of state depend on how old a KV entry is
  // Scores that the host computes from positions.
  bool by_position() const;
  const kernels::ScoreSpec& spec() const { return config_.spec; }

  // Room for the queries of two prompts: the one that a step completes, and the one that it begins.
  void reserve_queries();
  // The request captures nothing any more, and nothing of it is asked for: others take its room.
  void end_rows(State* state);
  // Whether that is so once its prompt is complete and compressed.
  bool captures_prompts_alone() const;
  // An entry of the request starts.
  void begin_rows(const cpu::StepRows& rows, State* state);
  // The query rows that are captured while these are computed.
  cpu::CaptureRange capture_range(const cpu::StepRows& rows) const;
  // Marks of the step's KV entries, whose slots are rows.slots [rows][kv_heads].
  void update_state(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows, Matmul* matmul,
                    cudaStream_t stream);
  // Scores each plan entry's query rows against the KV entries they see: `score_heads` by (work, head), whose
  // sums become scorer state. Accumulators: all at once; stamps: heads of one entry at time `now`.
  void observe_state(AttentionScoreArgs attention_scores, uint32_t now, cudaStream_t stream);
  bool observes(const cpu::StepRows& rows) const;
  // Copies the captured query rows of an entry.
  void capture(uint32_t layer, const cpu::StepRows& rows, const __nv_bfloat16* q, State* state,
               cudaStream_t stream) const;
  // All layers were captured.
  void captured(const cpu::StepRows& rows, State* state) const;
  const __nv_bfloat16* queries(const State& state, uint32_t layer) const;
  // The same on the host, by layer. Waits for the stream.
  std::vector<cpu::Queries> fetch_queries(const State& state, cudaStream_t stream) const;
  // A probe pass: attention of its rows becomes scores, row 0 of head h at scores + h * stride.
  void score_probes(AttentionScoreArgs attention_scores, float* scores, uint64_t stride, uint32_t skip,
                    cudaStream_t stream);
  bool probes() const;   // asks rows that are not among the KV entries
  bool on_host() const;  // scores need more than our kernels know: host_scores.h

  // The batch's attention scores per head, for scorers that use them. `q`: what AttentionScoreHead::q_row
  // counts from.
  AttentionScoreArgs attention_score_args(const RankBatch& batch, const DeviceLists& lists, uint32_t first,
                                          uint32_t count, const uint32_t* tables, const __nv_bfloat16* q,
                                          bool listed) const;
  // Scores of heads [first, first + count) of the batch; head h's row i at scores()[h * stride + i].
  // `tokens`: computed so far.
  void score(const RankBatch& batch, const DeviceLists& lists, uint32_t first, uint32_t count,
             const uint32_t* tables, const __nv_bfloat16* q, bool listed, uint32_t tokens, uint64_t stride,
             cudaStream_t stream);
  float* scores() const { return scores_.as<float>(); }

  // Room for that many, before the step's first launch that needs them.
  void reserve_scores(uint32_t heads, uint64_t stride);
  void reserve_attention_scores(const AttentionScoreArgs& attention_scores);

 private:
  StateScore state_score() const;
  State take_queries(uint32_t rows);
  kernels::ScoreSource source() const { return config_.spec.scorer->source; }

  Config config_;
  const LlmSpec* llm_ = nullptr;
  const KvEntryMemory* memory_ = nullptr;
  KvEntryGates gates_;
  std::vector<State> free_queries_;  // room of requests that need it no more
  Buffer scores_, sums_, score_workspace_, keydiff_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_DEVICE_SCORER_H_
