// Arithmetic that several scorers share: dot products, masked softmax, pooling along positions.
//
// Values are fp32. Dot products (wide.h) add in one fixed order and exponentials are exact_exp.h's, so that
// what is kept does not depend on the machine. Sums over many probabilities are kept in double.

#ifndef KVTWIN_KERNELS_COMMON_SCORE_MATH_H_
#define KVTWIN_KERNELS_COMMON_SCORE_MATH_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/common/view.h"
#include "kernels/common/wide.h"

namespace kvtwin::kernels {

// What a scorer gives rows that must stay (its own window, the last token, sinks): above all others.
constexpr float kMustStay = std::numeric_limits<float>::infinity();

float norm2(const float* a, uint32_t dim);

// logits[i] <- exp(logits[i] - max) / sum, in place; -inf becomes 0. All -inf: all 0. A NaN makes all NaN, so
// that selection counts them.
void softmax(std::span<float> logits);

// How the G query heads of one KV head become one (docs/design/methods/conventions.md#selection).
enum class Reduce : uint8_t { kMean, kMax, kSum };
// Smoothing along the rows with stride 1. Average: missing neighbours count as zeros. Max: as -inf.
enum class Pool : uint8_t { kNone, kAverage, kMax };

// out[i] = pooled values around i, `kernel` wide (odd).
void pool_rows(Pool pool, uint32_t kernel, std::span<const float> in, std::span<float> out);

// Attention of queries over keys. Query row i sees a context key when the key's position is not larger than
// its own, and of its fellow rows' keys (own_k) those up to itself. Own keys are for rows that are not in
// the cache: Judge Q's probes, KVzip's repeat rows. Their probabilities count in the softmax and are cut
// off.
struct AttentionScores {
  HeadsView q;                              // [Hq][w][d], post-RoPE
  std::span<const uint32_t> q_positions{};  // [w]; empty: every context key is visible to every row
  HeadsView k;                              // [H][T][d], post-RoPE
  Positions positions;                      // of k
  HeadsView own_k{};                        // [H][w][d]; rows == 0: none
  bool renormalise = false;                 // scale each row so that the context columns sum to 1

  uint32_t group() const { return q.heads / k.heads; }
};

// Raw logits q.k / sqrt(d) of query head `j`, row `i`, against the context then own keys: [T + own rows].
// What is not visible is -inf.
void attention_score_logits(const AttentionScores& attention_scores, uint32_t j, uint32_t i,
                            std::vector<float>* logits);

// Probabilities over the context alone, [T]: softmax over all that is visible, cut to the context.
void attention_score_row(const AttentionScores& attention_scores, uint32_t j, uint32_t i,
                         std::vector<float>* probabilities);
// The same from logits that attention_score_logits() made.
void attention_score_softmax(const AttentionScores& attention_scores, std::vector<float>* logits);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_COMMON_SCORE_MATH_H_
