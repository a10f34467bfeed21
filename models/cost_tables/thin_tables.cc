#include "models/cost_tables/thin_tables.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtwin {
namespace {

// How often a step runs an operation; 0: the table is of whole steps, or of copies.
double times_of(std::string_view operation, double layers) {
  for (const std::string_view once : {"embed", "logits", "sample"}) {
    if (operation == once) return 1;
  }
  for (const std::string_view of_layer :
       {"qkv", "append", "attention out", "gate up", "activation", "down"}) {
    if (operation == of_layer) return layers;
  }
  if (operation == "norm") return 2 * layers;
  if (operation.find("attention") != operation.npos || operation.find("packing") != operation.npos)
    return layers;
  return operation.find("host") != operation.npos ? 1 : 0;
}

// The time of a step of so many rows, without attention: linear between the rows that all tables have.
class TimeWithoutAttention {
 public:
  TimeWithoutAttention(const MeasuredDevice& device, double layers) {
    for (const MeasuredTable& table : device.tables) {
      const double times = times_of(table.operation, layers);
      if (times == 0 || !table.context.empty()) continue;
      for (size_t i = 0; i < table.rows.size(); ++i) sums_[table.rows[i]] += times * table.at[i].us;
    }
  }
  // The most at any smaller number of rows: a row that few tables have does not count for less.
  double at(double rows) const {
    double out = 1;
    for (const auto& [of, us] : sums_) {
      if (of > rows) break;
      out = std::max(out, us);
    }
    return out;
  }

 private:
  std::map<double, double> sums_;
};

// Points [first, end) of a table have the same rows; a table without contexts is one such piece.
struct TablePiece {
  size_t first = 0, end = 0;
};

class ThinnedTable {
 public:
  ThinnedTable(MeasuredTable* table, double layers, const TimeWithoutAttention& step)
      : table_(*table),
        times_(times_of(table->operation, layers)),
        step_(step),
        stays_(table->rows.size(), true) {
    for (size_t first = 0; first < stays_.size();) {
      size_t end = first + 1;
      while (end < stays_.size() && (flat() || table_.rows[end] == table_.rows[first])) ++end;
      pieces_.push_back({first, end});
      first = end;
    }
    here_.assign(pieces_.size(), true);
  }

  // What may be left out next: a point, or all points of a number of rows.
  struct Candidate {
    double wrong = 0;
    size_t piece = 0, point = 0;
    bool whole = false, none = true;
  };
  Candidate best() const {
    Candidate out;
    const auto take = [&](const Candidate& one) {
      if (out.none || one.wrong < out.wrong) out = one;
    };
    for (size_t p = 0; p < pieces_.size(); ++p) {
      if (!here_[p]) continue;
      for (size_t i = pieces_[p].first + 1; i + 1 < pieces_[p].end; ++i) {
        if (stays_[i]) take({without_point(p, i), p, i, false, false});
      }
      if (p > 0 && p + 1 < pieces_.size()) take({without_piece(p), p, 0, true, false});
    }
    return out;
  }
  // The number of points that go.
  size_t leave_out(const Candidate& one) {
    if (!one.whole) {
      stays_[one.point] = false;
      return 1;
    }
    size_t out = 0;
    for (size_t i = pieces_[one.piece].first; i < pieces_[one.piece].end; ++i) {
      out += stays_[i] ? 1 : 0;
      stays_[i] = false;
    }
    here_[one.piece] = false;
    return out;
  }
  void shrink() {
    MeasuredTable out{table_.operation, table_.shape, {}, {}, {}};
    for (size_t i = 0; i < stays_.size(); ++i) {
      if (!stays_[i]) continue;
      out.rows.push_back(table_.rows[i]), out.at.push_back(table_.at[i]);
      if (!flat()) out.context.push_back(table_.context[i]);
    }
    table_ = std::move(out);
  }

 private:
  bool flat() const { return table_.context.empty(); }
  double x(size_t i) const { return flat() ? table_.rows[i] : table_.context[i]; }

  // Of point i, if its operation took `us`: relative to the step.
  double wrong(size_t i, double us) const {
    const double own = table_.at[i].us;
    const double whole = times_ == 0 ? own : step_.at(table_.rows[i]) + times_ * own;
    return std::abs(us - own) * std::max(1.0, times_) / std::max(1e-9, whole);
  }
  // The largest error of the points between the neighbours of `i` that stay, if it does not.
  double without_point(size_t, size_t i) const {
    size_t low = i - 1, high = i + 1;
    while (!stays_[low]) --low;
    while (!stays_[high]) ++high;
    double out = 0;
    for (size_t at = low + 1; at < high; ++at) out = std::max(out, wrong(at, between(low, high, x(at))));
    return out;
  }
  double between(size_t low, size_t high, double at) const {
    const double weight = (at - x(low)) / (x(high) - x(low));
    return table_.at[low].us + weight * (table_.at[high].us - table_.at[low].us);
  }
  // The curve of a piece, as MeasuredCurves reads it.
  double curve(const TablePiece& piece, double at) const {
    size_t low = piece.first, high = piece.first;
    for (size_t i = piece.first; i < piece.end; ++i) {
      if (!stays_[i]) continue;
      if (high != low && x(high) >= at) break;
      if (i != piece.first) low = high;
      high = i;
    }
    return high == low || at <= x(piece.first) ? table_.at[at <= x(piece.first) ? piece.first : high].us
                                               : between(low, high, at);
  }
  // The largest error of all points between the neighbours of a piece that are here, if it is not.
  double without_piece(size_t p) const {
    size_t low = p - 1, high = p + 1;
    while (!here_[low]) --low;
    while (!here_[high]) ++high;
    const double from = table_.rows[pieces_[low].first], to = table_.rows[pieces_[high].first];
    double out = 0;
    for (size_t q = low + 1; q < high; ++q) {
      const size_t last = pieces_[q].end - 1;
      const double weight = (table_.rows[last] - from) / (to - from);
      const auto us = [&](size_t i) {
        const double before = curve(pieces_[low], x(i)), after = curve(pieces_[high], x(i));
        return before + weight * (after - before);
      };
      // Of the clock only the ratio to a number of rows' last point counts.
      const double scale = times_ == 0 ? table_.at[last].us / us(last) : 1;
      for (size_t i = pieces_[q].first; i < pieces_[q].end; ++i) out = std::max(out, wrong(i, us(i) * scale));
    }
    return out;
  }

  MeasuredTable& table_;
  const double times_;
  const TimeWithoutAttention& step_;
  std::vector<bool> stays_;
  std::vector<TablePiece> pieces_;
  std::vector<bool> here_;
};

}  // namespace

size_t points_of(const MeasuredDevice& device) {
  size_t out = 0;
  for (const MeasuredTable& table : device.tables) out += table.rows.size();
  for (const MeasuredKv& format : device.formats) {
    for (const MeasuredTable& table : format.tables) out += table.rows.size();
  }
  return out;
}

void thin_tables(uint32_t layers, size_t most, MeasuredDevice* device) {
  const TimeWithoutAttention step(*device, layers);
  std::vector<ThinnedTable> tables;
  for (MeasuredTable& table : device->tables) tables.emplace_back(&table, layers, step);
  for (MeasuredKv& format : device->formats) {
    for (MeasuredTable& table : format.tables) tables.emplace_back(&table, layers, step);
  }
  std::vector<ThinnedTable::Candidate> best;
  for (const ThinnedTable& table : tables) best.push_back(table.best());
  for (size_t count = points_of(*device); count > most;) {
    size_t least = 0;
    for (size_t t = 1; t < best.size(); ++t) {
      if (!best[t].none && (best[least].none || best[t].wrong < best[least].wrong)) least = t;
    }
    if (best.empty() || best[least].none) break;  // only ends are left
    count -= std::min(count, tables[least].leave_out(best[least]));
    best[least] = tables[least].best();
  }
  for (ThinnedTable& table : tables) table.shrink();
}

}  // namespace kvtwin
