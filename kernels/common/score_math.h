// Arithmetic that several scorers share: dot products, masked softmax, pooling along positions.
//
// Values are fp32. Dot products (wide.h) have one fixed order of additions and exponentials are
// exact_exp.h's, so the retained entries do not depend on the machine. Sums over many probabilities are
// double.

#ifndef KVTWIN_KERNELS_COMMON_SCORE_MATH_H_
#define KVTWIN_KERNELS_COMMON_SCORE_MATH_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/common/view.h"
#include "kernels/common/wide.h"

namespace kvtwin::kernels {

// The score of rows that must be retained (a scorer's window, the last token, sinks): higher than any other.
constexpr float kMustStay = std::numeric_limits<float>::infinity();

float norm2(const float* a, uint32_t dim);

// logits[i] <- exp(logits[i] - max) / sum, in place; -inf becomes 0. If all are -inf, all become 0. One NaN
// makes all NaN, so that selection counts them.
void softmax(std::span<float> logits);

// How scores of the G query heads of a KV head are reduced to one
// (docs/design/methods/conventions.md#selection).
enum class Reduce : uint8_t { kMean, kMax, kSum };
// Smoothing along the rows, stride 1. Average: missing neighbours count as 0. Max: as -inf.
enum class Pool : uint8_t { kNone, kAverage, kMax };

// out[i] = pooled values around i, `kernel` wide (odd).
void pool_rows(Pool pool, uint32_t kernel, std::span<const float> in, std::span<float> out);

// Query rows and the keys that they attend to. Query row i sees a context key at a position not larger than
// its own, and the keys own_k of query rows up to i. own_k is for rows that are not in the cache (Judge Q's
// probe tokens, KVzip's repeat rows): their probabilities count in the softmax and are then dropped.
struct AttentionScores {
  HeadsView q;                              // [Hq][w][d], post-RoPE
  std::span<const uint32_t> q_positions{};  // [w]; empty: every context key is visible to every row
  HeadsView k;                              // [H][T][d], post-RoPE
  Positions positions;                      // of k
  HeadsView own_k{};                        // [H][w][d]; rows == 0: no such keys
  bool renormalise = false;                 // scale each row so that the context columns sum to 1

  uint32_t group() const { return q.heads / k.heads; }
};

// Raw logits q.k / sqrt(d) of query head `j`, row `i`, over the context keys and then own keys: [T + own
// rows]. Invisible keys get -inf.
void attention_score_logits(const AttentionScores& attention_scores, uint32_t j, uint32_t i,
                            std::vector<float>* logits);

// Probabilities over the context, [T]: softmax over all visible keys, truncated to the context.
void attention_score_row(const AttentionScores& attention_scores, uint32_t j, uint32_t i,
                         std::vector<float>* probabilities);
// The same, in place, from the logits of attention_score_logits().
void attention_score_softmax(const AttentionScores& attention_scores, std::vector<float>* logits);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_COMMON_SCORE_MATH_H_
