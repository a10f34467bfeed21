#include "models/cost_tables/attention_table.h"

#include <cmath>
#include <limits>

namespace kvtwin {
namespace {

constexpr uint32_t kColumnsMax = 4096;  // decodes that are memoised: 4,096 * 2 * 11 contexts = 0.7 MB

// Below this, alpha is noise around zero and its logarithm is meaningless.
constexpr double kAlphaLogMin = 0.005;

// Log-log between the neighbours of `n`, linear where one of them is about zero. Beyond the ends the last
// segment is extended (`beyond`), or the end value holds.
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

// FlashAttention-2 splits the keys of a decode batch while batch * KV heads would leave SMs idle: it uses one
// split from 0.8 * 2 * SMs on (num_splits_heuristic in its flash_api.cpp). The two regimes are different
// kernels with different times, so nothing is interpolated across the border.
AttentionTable::AttentionTable(const CostTables& tables, uint32_t kv_heads, uint32_t sm_count)
    : chunk_(tables.attention.chunk),
      decodes_(tables.attention.decodes),
      skew_mixed_(tables.skew_mixed),
      kv_heads_(kv_heads),
      split_limit_(0.8 * 2 * sm_count) {
  if (!tables.attention.decodes_mixed.empty()) decodes_mixed_ = Axis(tables.attention.decodes_mixed);
  add_pure(tables.attention);
  add_mixed(tables.attention);
  for (uint32_t i = 0; i < decodes_.size(); ++i) regime_[unsplit(decodes_[i])].push_back(i);
  for (const SkewPoint& point : tables.skew_pure) skew_[unsplit(point.decodes)].push_back(point);
  if (!tables.skew_chunk.empty()) skew_chunk_ = Axis(tables.skew_chunk);
  columns_.resize(kColumnsMax * 2);
  column_us_.resize(kColumnsMax * 2 * decode_context_.size());
  spare_us_.resize(decode_context_.size());
  mixed_alpha_.assign(kColumnsMax * skew_mixed_.size(), std::numeric_limits<double>::quiet_NaN());
}

uint32_t AttentionTable::axis_of(const std::vector<uint32_t>& at) {
  const auto [it, fresh] = axis_ids_.try_emplace(at, static_cast<uint32_t>(axes_.size()));
  if (fresh) axes_.emplace_back(at);
  return it->second;
}

AttentionTable::Row AttentionTable::add_row(const Curve& curve) {
  const Row row{axis_of(curve.at), static_cast<uint32_t>(us_.size())};
  us_.insert(us_.end(), curve.us.begin(), curve.us.end());
  return row;
}

// Converts curves of decodes alone to one axis, the union of theirs: exact, because they are linear in
// between.
void AttentionTable::add_pure(const AttentionGrid& grid) {
  std::vector<uint32_t> contexts;
  for (const Curve& curve : grid.pure) contexts.insert(contexts.end(), curve.at.begin(), curve.at.end());
  std::sort(contexts.begin(), contexts.end());
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  decode_context_ = Axis(contexts);
  for (const Curve& curve : grid.pure) {
    const Axis axis(curve.at);
    for (const uint32_t context : contexts) {
      pure_.push_back(axis.bracket(context).blend([&](size_t i) { return curve.us[i]; }));
    }
  }
}

void AttentionTable::add_mixed(const AttentionGrid& grid) {
  for (const Curve& curve : grid.prefill) prefill_.push_back(add_row(curve));
  for (const ContextCurves& curves : grid.mixed) {
    mixed_.push_back({axis_of(curves.chunk_context), static_cast<uint32_t>(rows_.size())});
    for (const Curve& curve : curves.by_context) rows_.push_back(add_row(curve));
  }
}

AttentionTime AttentionTable::step(const StepShape& shape) {
  if (!shape.chunks.empty()) return mixed(shape);
  return shape.decodes > 0 ? decode(shape) : AttentionTime{};
}

void AttentionTable::fill_column(uint32_t decodes, bool unsplit, Column* column, double* us) const {
  // A batch that is padded across the border may have a regime without points: use the other one.
  const std::vector<uint32_t>& rows = regime_[unsplit].empty() ? regime_[!unsplit] : regime_[unsplit];
  const double n = decodes;
  size_t i = 1;
  while (i + 1 < rows.size() && decodes_[rows[i]] <= decodes) ++i;
  const uint32_t low = rows[i - 1], high = rows[std::min(i, rows.size() - 1)];
  const double a = decodes_[low], b = decodes_[high];
  const double weight = low == high ? 0 : (n - a) / (b - a);
  column->evidence = n == a || n == b           ? Evidence::kMeasured
                     : weight > 0 && weight < 1 ? Evidence::kInterpolated
                                                : Evidence::kExtrapolated;
  const size_t contexts = decode_context_.size();
  for (size_t d = 0; d < contexts; ++d) {
    const double from = pure_[low * contexts + d], to = pure_[high * contexts + d];
    us[d] = std::max(0.0, from + (to - from) * weight);
  }
  column->alpha = alpha_at(skew_[unsplit], decodes, true);
  column->ready = true;
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
  const Bracket c = chunk_.bracket(chunk.tokens);
  Evidence evidence = c.evidence;
  const double us = c.blend([&](size_t i) {
    const Row row = prefill_[i];
    const Bracket k = axes_[row.axis].bracket(chunk.context);
    evidence = worse(evidence, k.evidence);
    return k.blend([&](size_t j) { return us_[row.first + j]; });
  });
  return {std::max(0.0, us), evidence};
}

double AttentionTable::mixed_alpha(uint32_t decodes, uint32_t chunk) {
  if (decodes < 2 || skew_mixed_.empty()) return 0;
  return skew_chunk_.bracket(chunk).blend([&](size_t c) {
    if (decodes >= kColumnsMax) return alpha_at(skew_mixed_[c], decodes, false);
    double& known = mixed_alpha_[decodes * skew_mixed_.size() + c];
    if (std::isnan(known)) known = alpha_at(skew_mixed_[c], decodes, false);
    return known;
  });
}

AttentionTime AttentionTable::mixed_at(const Bracket& chunk, const Bracket& decodes, double chunk_context,
                                       double context) const {
  AttentionTime time{0, worse(chunk.evidence, decodes.evidence)};
  uint32_t axis = UINT32_MAX;  // of the last bracket: neighbouring curves mostly have the same axis
  Bracket at;
  const auto read = [&](const Row& row) {
    if (row.axis != axis) {
      axis = row.axis, at = axes_[axis].bracket(context);
      time.evidence = worse(time.evidence, at.evidence);
    }
    return at.blend([&](size_t i) { return us_[row.first + i]; });
  };
  time.us = chunk.blend([&](size_t c) {
    return decodes.blend([&](size_t n) {
      const Slice slice = mixed_[c * decodes_mixed_.size() + n];
      const Bracket k = axes_[slice.axis].bracket(chunk_context);
      time.evidence = worse(time.evidence, k.evidence);
      return k.blend([&](size_t i) { return read(rows_[slice.first + i]); });
    });
  });
  return time;
}

// The chunk and all decodes together.
AttentionTime AttentionTable::concurrent(const StepShape& shape, const ChunkShape& chunk) {
  if (mixed_.empty()) {
    const AttentionTime alone = prefill(chunk), decodes = decode(shape);
    return {alone.us + decodes.us, worse(alone.evidence, decodes.evidence)};
  }
  const Bracket c = chunk_.bracket(chunk.tokens), n = decodes_mixed_.bracket(shape.decodes);
  const double mean = static_cast<double>(shape.decode_context_sum) / shape.decodes;
  AttentionTime time = mixed_at(c, n, chunk.context, mean);
  const double alpha = shape.decode_context_max > mean ? mixed_alpha(shape.decodes, chunk.tokens) : 0;
  if (alpha != 0) {
    const AttentionTime most = mixed_at(c, n, chunk.context, shape.decode_context_max);
    time.us += alpha * (most.us - time.us);
    time.evidence = worse(time.evidence, worse(most.evidence, Evidence::kInterpolated));
  }
  return time;
}

AttentionTime AttentionTable::mixed(const StepShape& shape) {
  size_t main = 0;
  double most_work = -1;
  for (size_t i = 0; i < shape.chunks.size(); ++i) {
    const ChunkShape& chunk = shape.chunks[i];
    const double work = static_cast<double>(chunk.tokens) * (chunk.context + chunk.tokens / 2.0);
    if (work > most_work) most_work = work, main = i;
  }
  const ChunkShape& largest = shape.chunks[main];
  AttentionTime time;
  if (shape.decodes == 0) {
    time = prefill(largest);
  } else {
    time = concurrent(shape, largest);
  }
  const double smallest = us_[prefill_[0].first];
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
