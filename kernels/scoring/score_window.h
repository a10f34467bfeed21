// Scorers from the attention of a few query rows: SnapKV and its relatives, TOVA, FINCH, Judge Q.
//
// The captured query rows attend to the keys. Their probabilities are averaged over the rows, reduced over
// the G query heads of a KV head, and smoothed along positions; the result is the score. Code bases differ in
// the order of the last two, in the reduction and in the smoothing (docs/design/methods/uniform.md#snapkv).
//
// Shapes: q [Hq][w][d], k [H][T][d], out [H][T]; query head j belongs to KV head j / (Hq / H).
// Sources: SnapKV (arXiv 2404.14469), docs/design/methods/uniform.md#snapkv, #tova-knorm-keydiff,
// #head-patterns (FINCH); docs/design/methods/judge-q.md#inference. Cost: O(Hq * w * T * d). No state. The
// result does not depend on the order of the query rows, except by rounding.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_WINDOW_H_
#define KVTWIN_KERNELS_SCORING_SCORE_WINDOW_H_

#include <cstdint>
#include <vector>

#include "kernels/common/score_math.h"
#include "kernels/common/view.h"

namespace kvtwin::kernels {

enum class PoolOrder : uint8_t {
  kPoolThenReduce,     // kvpress
  kReduceThenPool,     // AdaKV, KVCache-Factory, Judge Q
  kReduceLogitsFirst,  // TANGRAM: the G logits are reduced before the softmax
};

struct WindowSpec {
  uint32_t window = 32;  // query rows to capture, and rows to retain; the captured rows take precedence
  uint32_t kernel = 7;   // odd
  Pool pool = Pool::kMax;
  Reduce reduce = Reduce::kMean;
  PoolOrder order = PoolOrder::kReduceThenPool;
  bool causal = true;          // within the window's rows; TANGRAM applies no mask there
  bool weigh_visible = false;  // FINCH: each row times its number of visible keys
  // Rows at the captured queries' positions get kMustStay. False for probe tokens, which are not in the
  // cache.
  bool keep_window = true;
};

// The published defaults (docs/design/methods/uniform.md#snapkv, docs/design/methods/judge-q.md#inference).
enum class WindowCodeBase : uint8_t {
  kKvpress,
  kAdaKv,
  kKvCacheFactory,
  kTangram,
  kIntentKv,   // its SnapKV baseline
  kH2oWindow,  // called H2O in Judge Q's paper: SnapKV without smoothing
  kJudgeQ,     // of probe tokens; retains no window
  kFinch,
};
WindowSpec window_spec(WindowCodeBase code_base);

// Scores every context row of `attention_scores` (own_k: the keys of probe tokens). A context row is a window
// row if its position is at least the smallest of q_positions. Pooling and the mean use only the rows before
// the window. If q_positions is empty (probe tokens) or keep_window is false, all rows are scored.
void score_window(const WindowSpec& spec, const AttentionScores& attention_scores, ScoreView out);

// TOVA: probabilities of the last query row, averaged over all Hq heads of the layer: the same for every KV
// head. The row at the query's position must be retained. Heads must hold the same positions.
void score_tova(const AttentionScores& attention_scores, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_WINDOW_H_
