// CellScores captures what a scorer needs while rows are computed, and scores what a compression ranks: what
// cpu::CellScorer does, on the device.
//
// Query windows are copied aside as they go by; what belongs to a cell (accumulators, stamps, gates) is its
// mark (cell_memory.h). Kernels: score_keys_cuda.h, score_look.h, cell_marks.h. Scorers that look at
// positions alone are computed on the host, where positions are.

#ifndef KVTWIN_ENGINE_CUDA_CELL_SCORES_H_
#define KVTWIN_ENGINE_CUDA_CELL_SCORES_H_

#include <memory>
#include <span>
#include <vector>

#include "engine/cpu/cell_scorer.h"
#include "engine/cpu/ranking.h"
#include "engine/cpu/scorer_weights.h"
#include "engine/cuda/cell_gates.h"
#include "engine/cuda/cell_memory.h"
#include "engine/cuda/kv_cache.h"
#include "engine/cuda/rank_batch.h"
#include "engine/policy/scorer_spec.h"
#include "kernels/score.h"

namespace kvtwin::cuda {

class CellScores {
 public:
  // Query rows of a call, all layers: [2][layers][room][query_heads][head_dim]; the newest are behind one
  // another on side `side`.
  struct State {
    Buffer queries;
    uint32_t side = 0, room = 0;   // rows that fit a side
    std::vector<uint32_t> phases;  // of the rows on it, ascending
  };

  using Config = cpu::ScorerConfig;

  // All must outlive it. `rows`: of one step, at most. Wrong: no room for weights.
  static Result<CellScores> make(const Config& config, const LlmSpec* llm, const CellMemory* memory,
                                 const cpu::ScorerWeights& weights, uint32_t rows);

  bool has_marks() const;
  bool looks() const;  // at the queries that were captured
  bool marks_are_gates() const;
  // Scores that the host computes from positions.
  bool by_position() const;
  const kernels::ScoreSpec& spec() const { return config_.spec; }

  // An entry of the call starts.
  void begin_rows(const cpu::StepRows& rows, State* state);
  // How many of the last query rows are kept while rows such as these are computed.
  uint32_t rows_kept(const cpu::StepRows& rows) const;
  // Marks of the step's cells, whose slots are rows.slots [rows][kv_heads].
  void mark_cells(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows, Matmul* matmul,
                  cudaStream_t stream);
  // Each entry's query rows look at the cells they see: `looks` by (work, head), their sums become marks.
  // Accumulators: all at once; stamps: heads of one entry at time `now`.
  void observe_marks(LookArgs look, uint32_t now, cudaStream_t stream);
  bool observes(const cpu::StepRows& rows) const;
  // Takes the last query rows of an entry aside.
  void capture(uint32_t layer, const cpu::StepRows& rows, const __nv_bfloat16* q, State* state,
               cudaStream_t stream) const;
  // All layers were captured.
  void captured(const cpu::StepRows& rows, State* state) const;
  const __nv_bfloat16* queries(const State& state, uint32_t layer) const;
  // The same on the host, by layer. Waits for the stream.
  std::vector<cpu::Queries> fetch_queries(const State& state, cudaStream_t stream) const;
  // A probe pass goes by: what its rows look at becomes scores, row 0 of head h at scores + h * stride.
  void score_probes(LookArgs look, float* scores, uint64_t stride, uint32_t skip, cudaStream_t stream);
  bool probes() const;   // asks rows that are not among the cells
  bool on_host() const;  // scores need more than our kernels know: host_scores.h

  // How the batch's heads look, where the scorer does. `q`: what LookHead::q_row counts from.
  LookArgs look_args(const RankBatch& batch, const DeviceLists& lists, uint32_t first, uint32_t count,
                     const uint32_t* tables, const __nv_bfloat16* q, bool listed) const;
  // Scores of heads [first, first + count) of the batch; head h's row i at scores()[h * stride + i].
  // `tokens`: computed so far.
  void score(const RankBatch& batch, const DeviceLists& lists, uint32_t first, uint32_t count,
             const uint32_t* tables, const __nv_bfloat16* q, bool listed, uint32_t tokens, uint64_t stride,
             cudaStream_t stream);
  float* scores() const { return scores_.as<float>(); }

  // Before the step's first launch that needs them: room for so many.
  void reserve_scores(uint32_t heads, uint64_t stride);
  void reserve_look(const LookArgs& look);

 private:
  Config config_;
  const LlmSpec* llm_ = nullptr;
  const CellMemory* memory_ = nullptr;
  CellGates gates_;
  Buffer scores_, sums_, look_workspace_, keydiff_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_CELL_SCORES_H_
