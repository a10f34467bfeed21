// R-KV: what an entry is worth is its attention less its redundancy, so that of entries that say the same
// only the newest stays. Made for long outputs that repeat themselves, and compressed while they are decoded.
//
//   I  the window's queries attend to the entries before the window: the largest logit of a KV head's query
//   heads,
//      softmax, mean over the queries, maximum over `kernel` neighbours
//   S  cosines between all keys of a head; 0 on the diagonal, and for each key at the newest key that is more
//   similar
//      than the threshold
//   R  softmax over the entries of the mean of S over all keys
//   score = weight * I - (1 - weight) * R
//
// Source: R-KV (arXiv 2505.24133, section 3), with the values of its released code. That code compresses once
// per 128 decoded tokens; here each step after which a head holds more than its budget does. O(H T^2 d) per
// layer.

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "kernels/common/score_math.h"
#include "kernels/scoring/score.h"
#include "kernels/scoring/scorer_option.h"

namespace kvtwin::kernels {
namespace {

// Indices of ScoreSpec::own.
constexpr size_t kRKvWeight = 0, kRKvThreshold = 1;

constexpr std::string_view kRKvPools[] = {"none", "average", "max"};
constexpr ScorerOption kRKvOptions[] = {
    option(
        "query_tokens", 1, 65'536, [](auto& s) -> auto& { return s.window.window; }),
    option(
        "kernel", 1, 255, [](auto& s) -> auto& { return s.window.kernel; }, {}, true),
    choice(
        "pool", kRKvPools, [](auto& s) -> auto& { return s.window.pool; }),
    option(
        "attention_weight", 0, 1, [](auto& s) -> auto& { return s.own[kRKvWeight]; }),
    option(
        "similarity_threshold", -1, 1, [](auto& s) -> auto& { return s.own[kRKvThreshold]; }),
};

void set_r_kv_defaults(ScoreSpec* spec) {
  spec->window = {.window = 8, .order = PoolOrder::kReduceLogitsFirst};
  spec->own[kRKvWeight] = 0.1f;
  spec->own[kRKvThreshold] = 0.5f;
}

HeadsView leading_rows(HeadsView head, uint32_t rows) {
  if (!head.list.empty()) head.list = head.list.first(rows);
  head.rows = rows;
  return head;
}

// R [T] of the keys of one head.
std::vector<float> redundancy(const HeadsView& k, float threshold) {
  const uint32_t rows = k.rows;
  std::vector<float> lengths(rows), cosines(rows), out(rows);
  for (uint32_t i = 0; i < rows; ++i) lengths[i] = norm2(k.row(0, i), k.dim) + 1e-8f;
  std::vector<double> sums(rows, 0.0);
  for (uint32_t i = 0; i < rows; ++i) {
    uint32_t newest = rows;  // the newest key that is similar to key i
    for (uint32_t j = 0; j < rows; ++j) {
      cosines[j] = i == j ? 0.0f : dot(k.row(0, i), k.row(0, j), k.dim) / (lengths[i] * lengths[j]);
      if (i != j && cosines[j] > threshold) newest = j;
    }
    for (uint32_t j = 0; j < rows; ++j) {
      if (j != newest) sums[j] += cosines[j];
    }
  }
  const double largest = rows == 0 ? 0 : *std::max_element(sums.begin(), sums.end()) / rows;
  double whole = 0;
  for (uint32_t j = 0; j < rows; ++j) whole += std::exp(sums[j] / rows - largest);
  for (uint32_t j = 0; j < rows; ++j) out[j] = static_cast<float>(std::exp(sums[j] / rows - largest) / whole);
  return out;
}

void score_r_kv(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  KVT_CHECK(out.heads == in.k.heads && out.rows == in.k.rows);
  const uint32_t group = in.q.heads / in.k.heads;
  const float weight = spec.own[kRKvWeight];
  for (uint32_t h = 0; h < in.k.heads; ++h) {
    uint32_t before = 0;  // rows before the window
    while (before < in.k.rows && !in.q_positions.empty() &&
           in.positions.at(h, before) < in.q_positions.front())
      ++before;
    const std::span<float> scores = out.row(h);
    std::fill(scores.begin() + before, scores.end(), kMustStay);
    if (before == 0) continue;
    const HeadsView keys = heads_of(in.k, h, 1);
    const HeadsView before_window = leading_rows(keys, before);
    score_window(spec.window,
                 {.q = heads_of(in.q, h * group, group), .k = before_window, .positions = {before, {}}},
                 packed_scores(scores.first(before), 1, before));
    const std::vector<float> redundant = redundancy(keys, spec.own[kRKvThreshold]);
    for (uint32_t p = 0; p < before; ++p) scores[p] = weight * scores[p] - (1 - weight) * redundant[p];
  }
}

}  // namespace

extern const ScorerDefinition kRKv{.name = "r_kv",
                                   .source = ScoreSource::kWindowQueries,
                                   .captures = capture::kKeys | capture::kWindowQueries,
                                   .score = score_r_kv,
                                   .options = kRKvOptions,
                                   .set_defaults = set_r_kv_defaults,
                                   .watches_decodes = true,
                                   .work = {.key_products = 1}};

}  // namespace kvtwin::kernels
