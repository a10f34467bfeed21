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

// A curve over rows, or over the contexts of one number of rows: [first, end) of a table.
struct ThinnedCurve {
  MeasuredTable* table = nullptr;
  size_t first = 0, end = 0;
  bool over_rows = true;
};

class TableThinner {
 public:
  TableThinner(uint32_t layers, MeasuredDevice* device)
      : layers_(layers), step_(*device, layers), device_(device) {
    for (MeasuredTable& table : device->tables) add(&table);
    for (MeasuredKv& format : device->formats) {
      for (MeasuredTable& table : format.tables) add(&table);
    }
  }

  void leave(size_t most) {
    size_t count = points_of(*device_);
    while (count > most) {
      std::vector<bool>* where = nullptr;
      size_t which = 0;
      double least = 0;
      for (size_t c = 0; c < curves_.size(); ++c) {
        for (size_t i = curves_[c].first + 1; i + 1 < curves_[c].end; ++i) {
          std::vector<bool>& stays = stays_[curves_[c].table];
          if (!stays[i]) continue;
          const double wrong = error_without(curves_[c], stays, i);
          if (where == nullptr || wrong < least) where = &stays, which = i, least = wrong;
        }
      }
      if (where == nullptr) break;  // only ends are left
      (*where)[which] = false;
      --count;
    }
    for (auto& [table, stays] : stays_) shrink(stays, table);
  }

 private:
  void add(MeasuredTable* table) {
    stays_[table].assign(table->rows.size(), true);
    if (table->context.empty()) {
      curves_.push_back({table, 0, table->rows.size(), true});
      return;
    }
    for (size_t first = 0; first < table->rows.size();) {
      size_t end = first;
      while (end < table->rows.size() && table->rows[end] == table->rows[first]) ++end;
      curves_.push_back({table, first, end, false});
      first = end;
    }
  }

  static double x(const ThinnedCurve& curve, size_t i) {
    return curve.over_rows ? curve.table->rows[i] : curve.table->context[i];
  }

  // The largest error of the points between the neighbours of `i` that stay, if it does not.
  double error_without(const ThinnedCurve& curve, const std::vector<bool>& stays, size_t i) const {
    size_t low = i - 1, high = i + 1;
    while (!stays[low]) --low;
    while (!stays[high]) ++high;
    const MeasuredTable& table = *curve.table;
    const double times = times_of(table.operation, layers_), from = x(curve, low), to = x(curve, high);
    double out = 0;
    for (size_t at = low + 1; at < high; ++at) {
      const double weight = (x(curve, at) - from) / (to - from);
      const double us = table.at[low].us + weight * (table.at[high].us - table.at[low].us);
      const double whole = times == 0 ? table.at[at].us : step_.at(table.rows[at]) + times * table.at[at].us;
      out = std::max(out, std::abs(us - table.at[at].us) * std::max(1.0, times) / std::max(1e-9, whole));
    }
    return out;
  }

  static void shrink(const std::vector<bool>& stays, MeasuredTable* table) {
    MeasuredTable out{table->operation, table->shape, {}, {}, {}};
    for (size_t i = 0; i < stays.size(); ++i) {
      if (!stays[i]) continue;
      out.rows.push_back(table->rows[i]), out.at.push_back(table->at[i]);
      if (!table->context.empty()) out.context.push_back(table->context[i]);
    }
    *table = std::move(out);
  }

  const double layers_;
  const TimeWithoutAttention step_;
  MeasuredDevice* const device_;
  std::vector<ThinnedCurve> curves_;
  std::map<MeasuredTable*, std::vector<bool>> stays_;
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
  TableThinner(layers, device).leave(most);
}

}  // namespace kvtwin
