#include "models/attention_table.h"

#include <cmath>
#include <limits>

namespace kvtwin {
namespace {

constexpr uint32_t kColumnsMax = 4096;  // decodes that are memoised: 4,096 * 2 * 11 contexts = 0.7 MB

// Below this, alpha is noise around zero and its logarithm means nothing.
constexpr double kAlphaLogMin = 0.005;

// Log-log between the neighbours of `n`, linear where one of them is about zero. Beyond the ends the last
// segment continues (`beyond`), or the end value holds.
double alpha_at(const std::vector<SkewPoint>& points, uint32_t n, bool beyond) {
  if (n < 2 || points.empty()) return 0;
  if (points.size() == 1) return points[0].alpha;
  size_t i = 1;
  while (i + 1 < points.size() && points[i].decodes <= n) ++i;
  const SkewPoint &a = points[i - 1], &b = points[i];
  if (a.alpha <= kAlphaLogMin || b.alpha <= kAlphaLogMin) {
    const double t = (static_cast<double>(n) - a.decodes) / (static_cast<double>(b.decodes) - a.decodes);
    return a.alpha + (b.alpha - a.alpha) * std::clamp(t, 0.0, 1.0);
  }
  double t =
      std::log(static_cast<double>(n) / a.decodes) / std::log(static_cast<double>(b.decodes) / a.decodes);
  if (!beyond) t = std::clamp(t, 0.0, 1.0);
  return std::min(1.0, std::exp(std::log(a.alpha) * (1 - t) + std::log(b.alpha) * t));
}

}  // namespace

// FlashAttention-2 cuts the keys of a decode batch into splits while batch * KV heads would leave SMs
// idle: it keeps one split from 0.8 * 2 * SMs on (num_splits_heuristic in its flash_api.cpp). The two
// regimes are different kernels with different times, so no line is drawn from one to the other.
AttentionTable::AttentionTable(const CostTables& tables, uint32_t kv_heads, uint32_t sm_count)
    : grid_(tables.attention),
      chunk_(grid_.chunk),
      chunk_context_(grid_.chunk_context),
      decodes_mixed_(grid_.decodes_mixed),
      decode_context_(grid_.decode_context),
      skew_mixed_(tables.skew_mixed),
      kv_heads_(kv_heads),
      split_limit_(0.8 * 2 * sm_count) {
  for (uint32_t i = 0; i < grid_.decodes.size(); ++i) rows_[unsplit(grid_.decodes[i])].push_back(i);
  for (const SkewPoint& point : tables.skew_pure) skew_[unsplit(point.decodes)].push_back(point);
  skew_mixed_.resize(grid_.chunk.size());
  columns_.resize(kColumnsMax * 2);
  column_us_.resize(kColumnsMax * 2 * decode_context_.size());
  spare_us_.resize(decode_context_.size());
  mixed_alpha_.assign(kColumnsMax * grid_.chunk.size(), std::numeric_limits<double>::quiet_NaN());
}

AttentionTime AttentionTable::step(const StepShape& shape) {
  if (!shape.chunks.empty()) return mixed(shape);
  return shape.decodes > 0 ? decode(shape) : AttentionTime{};
}

void AttentionTable::fill_column(uint32_t decodes, bool unsplit, Column* column, double* us) const {
  // A batch that is padded across the border may find its regime without any point: take the other.
  const std::vector<uint32_t>& rows = rows_[unsplit].empty() ? rows_[!unsplit] : rows_[unsplit];
  const double n = decodes;
  size_t i = 1;
  while (i + 1 < rows.size() && grid_.decodes[rows[i]] <= decodes) ++i;
  const uint32_t low = rows[i - 1], high = rows[std::min(i, rows.size() - 1)];
  const double a = grid_.decodes[low], b = grid_.decodes[high];
  const double weight = low == high ? 0 : (n - a) / (b - a);
  column->evidence = n == a || n == b           ? Evidence::kMeasured
                     : weight > 0 && weight < 1 ? Evidence::kInterpolated
                                                : Evidence::kExtrapolated;
  const size_t contexts = decode_context_.size();
  for (size_t d = 0; d < contexts; ++d) {
    const double from = grid_.pure[low * contexts + d], to = grid_.pure[high * contexts + d];
    us[d] = std::max(0.0, from + (to - from) * weight);
  }
  column->alpha = pure_alpha(decodes, unsplit);
  column->ready = true;
}

double AttentionTable::pure_alpha(uint32_t decodes, bool unsplit) const {
  return alpha_at(skew_[unsplit], decodes, true);
}

const AttentionTable::Column& AttentionTable::column(uint32_t decodes, bool unsplit, const double** us) {
  if (decodes >= kColumnsMax) {
    fill_column(decodes, unsplit, &spare_, spare_us_.data());
    *us = spare_us_.data();
    return spare_;
  }
  const size_t i = decodes * size_t{2} + unsplit;
  double* const values = &column_us_[i * decode_context_.size()];
  if (!columns_[i].ready) fill_column(decodes, unsplit, &columns_[i], values);
  *us = values;
  return columns_[i];
}

AttentionTime AttentionTable::decode(const StepShape& shape) {
  const double* us = nullptr;
  const Column& c = column(shape.decodes, unsplit(std::max(shape.decodes, shape.tokens_padded)), &us);
  const double mean = static_cast<double>(shape.decode_context_sum) / shape.decodes;
  const auto at = [us](uint32_t i) { return us[i]; };
  const Bracket context = decode_context_.bracket(mean);
  AttentionTime time{context.blend(at), worse(c.evidence, context.evidence)};
  const double longest = shape.decode_context_max;
  if (c.alpha > 0 && longest > mean) {
    const Bracket most = decode_context_.bracket(longest);
    time.us += c.alpha * (most.blend(at) - time.us);
    time.evidence = worse(time.evidence, worse(most.evidence, Evidence::kInterpolated));
  }
  return time;
}

AttentionTime AttentionTable::prefill(const ChunkShape& chunk) const {
  const Bracket c = chunk_.bracket(chunk.tokens), k = chunk_context_.bracket(chunk.context);
  const size_t row = chunk_context_.size();
  const double us =
      c.blend([&](size_t i) { return k.blend([&](size_t j) { return grid_.prefill[i * row + j]; }); });
  return {std::max(0.0, us), worse(c.evidence, k.evidence)};
}

double AttentionTable::mixed_alpha(uint32_t decodes, const Bracket& chunk) {
  if (decodes < 2) return 0;
  return chunk.blend([&](size_t c) {
    if (decodes >= kColumnsMax) return alpha_at(skew_mixed_[c], decodes, false);
    double& known = mixed_alpha_[decodes * grid_.chunk.size() + c];
    if (std::isnan(known)) known = alpha_at(skew_mixed_[c], decodes, false);
    return known;
  });
}

AttentionTime AttentionTable::mixed(const StepShape& shape) {
  size_t main = 0;
  double most_work = -1;
  for (size_t i = 0; i < shape.chunks.size(); ++i) {
    const ChunkShape& chunk = shape.chunks[i];
    const double work = static_cast<double>(chunk.tokens) * (chunk.context + chunk.tokens / 2.0);
    if (work > most_work) most_work = work, main = i;
  }
  AttentionTime time = prefill(shape.chunks[main]);
  if (shape.decodes > 0) {
    const Bracket c = chunk_.bracket(shape.chunks[main].tokens);
    const Bracket k = chunk_context_.bracket(shape.chunks[main].context);
    const Bracket n = decodes_mixed_.bracket(shape.decodes);
    const size_t contexts = decode_context_.size(), counts = decodes_mixed_.size(),
                 row = chunk_context_.size();
    const auto at_context = [&](double context, Evidence* evidence) {
      const Bracket d = decode_context_.bracket(context);
      *evidence = worse(*evidence, d.evidence);
      return c.blend([&](size_t ci) {
        return k.blend([&](size_t ki) {
          return n.blend([&](size_t ni) {
            const double* us = &grid_.mixed[((ci * row + ki) * counts + ni) * contexts];
            return d.blend([us](size_t di) { return us[di]; });
          });
        });
      });
    };
    time.evidence = worse(worse(c.evidence, k.evidence), n.evidence);
    const double mean = static_cast<double>(shape.decode_context_sum) / shape.decodes;
    time.us = at_context(mean, &time.evidence);
    const double alpha = shape.decode_context_max > mean ? mixed_alpha(shape.decodes, c) : 0;
    if (alpha != 0) {
      time.us += alpha * (at_context(shape.decode_context_max, &time.evidence) - time.us);
      time.evidence = worse(time.evidence, Evidence::kInterpolated);
    }
  }
  const double smallest = grid_.prefill[0];
  for (size_t i = 0; i < shape.chunks.size(); ++i) {
    if (i == main) continue;
    const AttentionTime other = prefill(shape.chunks[i]);
    time.us += std::max(0.0, other.us - smallest);
    // That chunks of one launch add up is a rule, not a measurement.
    time.evidence = worse(time.evidence, worse(other.evidence, Evidence::kInterpolated));
  }
  time.us = std::max(0.0, time.us);
  return time;
}

}  // namespace kvtwin
