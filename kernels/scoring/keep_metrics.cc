#include "kernels/scoring/keep_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/check.h"

namespace kvtwin::kernels {
HitCount count_hits(std::span<const uint32_t> retained, std::span<const uint32_t> reference) {
  HitCount out;
  out.reference = reference.size();
  size_t at = 0;
  for (const uint32_t row : reference) {
    while (at < retained.size() && retained[at] < row) ++at;
    out.hits += at < retained.size() && retained[at] == row;
  }
  return out;
}

double hit_rate(std::span<const HitCount> counts) {
  double sum = 0;
  uint64_t n = 0;
  for (const HitCount& count : counts) {
    if (count.reference == 0) continue;
    sum += static_cast<double>(count.hits) / static_cast<double>(count.reference);
    ++n;
  }
  return n == 0 ? 0.0 : sum / static_cast<double>(n);
}

double random_hit_rate(uint64_t retained, uint64_t rows) {
  return rows == 0 ? 0.0 : static_cast<double>(std::min(retained, rows)) / static_cast<double>(rows);
}

void attention_output(const AttentionScores& attention_scores, const HeadsView& v, uint32_t j, uint32_t i,
                      std::span<const uint32_t> retained, std::span<double> out) {
  KVT_CHECK(out.size() == v.dim && v.heads == attention_scores.k.heads && v.rows == attention_scores.k.rows);
  const uint32_t head = j / attention_scores.group(), dim = attention_scores.k.dim;
  std::vector<double> weights;
  RowSet visible;
  double largest = -std::numeric_limits<double>::infinity();
  for (const uint32_t p : retained) {
    if (!attention_scores.q_positions.empty() &&
        attention_scores.positions.at(head, p) > attention_scores.q_positions[i])
      continue;
    double sum = 0;
    for (uint32_t c = 0; c < dim; ++c)
      sum += double{attention_scores.q.row(j, i)[c]} * attention_scores.k.row(head, p)[c];
    visible.push_back(p);
    weights.push_back(sum / std::sqrt(double(dim)));
    largest = std::max(largest, weights.back());
  }
  std::fill(out.begin(), out.end(), 0.0);
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - largest);
  for (size_t n = 0; n < visible.size(); ++n) {
    for (uint32_t c = 0; c < v.dim; ++c) out[c] += weights[n] / total * v.row(head, visible[n])[c];
  }
}

}  // namespace kvtwin::kernels
