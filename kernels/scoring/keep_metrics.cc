#include "kernels/scoring/keep_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/check.h"

namespace kvtwin::kernels {
namespace {

std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double shared = static_cast<double>(begin + end - 1) / 2.0;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = shared;
    begin = end;
  }
  return ranks;
}

}  // namespace

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

OutputError output_error(const AttentionScores& attention_scores, const HeadsView& v,
                         std::span<const RowSet> retained) {
  KVT_CHECK(retained.size() == attention_scores.k.heads);
  RowSet all(attention_scores.k.rows);
  std::iota(all.begin(), all.end(), 0u);
  std::vector<double> full(v.dim), cut(v.dim);
  OutputError error;
  double differences = 0, squares = 0;
  for (uint32_t j = 0; j < attention_scores.q.heads; ++j) {
    for (uint32_t i = 0; i < attention_scores.q.rows; ++i) {
      attention_output(attention_scores, v, j, i, all, full);
      attention_output(attention_scores, v, j, i, retained[j / attention_scores.group()], cut);
      for (uint32_t c = 0; c < v.dim; ++c) {
        const double difference = cut[c] - full[c];
        error.max_abs = std::max(error.max_abs, std::fabs(difference));
        differences += difference * difference;
        squares += full[c] * full[c];
      }
    }
  }
  error.relative = squares > 0 ? std::sqrt(differences / squares) : 0.0;
  return error;
}

double spearman(std::span<const double> a, std::span<const double> b) {
  KVT_CHECK(a.size() == b.size());
  if (a.empty()) return 0.0;
  const std::vector<double> x = ranks_of(a), y = ranks_of(b);
  const double mean = static_cast<double>(a.size() - 1) / 2.0;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0.0;
}

}  // namespace kvtwin::kernels
