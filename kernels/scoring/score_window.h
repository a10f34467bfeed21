// Scorers from the attention of a few query rows: SnapKV and its relatives, TOVA, FINCH, Judge Q.
//
// In words: the captured query rows attend to the keys; the probabilities are averaged over the rows,
// joined over the G query heads of a KV head, smoothed along positions; that is the score. The code bases
// differ in the order of the last two, in what they join and in how they smooth
// (docs/design/methods/uniform.md#snapkv).
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
  kReduceLogitsFirst,  // TANGRAM: the G logits become one before the softmax
};

struct WindowSpec {
  uint32_t window = 32;  // query rows to capture, and rows that stay; what is captured rules
  uint32_t kernel = 7;   // odd
  Pool pool = Pool::kMax;
  Reduce reduce = Reduce::kMean;
  PoolOrder order = PoolOrder::kReduceThenPool;
  bool causal = true;          // within the window rows; TANGRAM applies no mask there
  bool weigh_visible = false;  // FINCH: each row times its number of visible keys
  // Rows at the captured queries' positions get kMustStay. False for probes, which are not in the cache.
  bool keep_window = true;
};

// The named defaults of docs/design/methods/uniform.md#snapkv and 5.2.
enum class WindowCodeBase : uint8_t {
  kKvpress,
  kAdaKv,
  kKvCacheFactory,
  kTangram,
  kJudgeQ,     // of probe rows; keeps no window
  kIntentKv,   // its SnapKV baseline
  kH2oWindow,  // what Judge Q's paper requests H2O: SnapKV without smoothing
  kFinch,
};
WindowSpec window_spec(WindowCodeBase code_base);
// TANGRAM halves its window for chunks below 1,000 tokens.
uint32_t tangram_window(uint32_t chunk_tokens);

// Scores every context row of `attention_scores` (look.own_k: probe rows' own keys). A context row counts as
// a window row when its position is at least the smallest of look.q_positions. Pooling and the mean see the
// rows before the window only. With q_positions empty (probes), or keep_window false, all rows are scored.
void score_window(const WindowSpec& spec, const AttentionScores& attention_scores, ScoreView out);

// TOVA: the last query row alone, averaged over all Hq heads of the layer; the same for every KV head, and
// the row at the query's position stays. Heads must hold the same positions.
void score_tova(const AttentionScores& attention_scores, ScoreView out);

// u[Hq][T]: per query head, the mean over the rows of `attention_scores` of the probabilities, before any
// joining or smoothing: the attention maps that Judge Q is trained on
// (docs/design/methods/judge-q.md#training).
std::vector<float> mean_attention(const AttentionScores& attention_scores);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_WINDOW_H_
