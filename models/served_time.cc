#include "models/served_time.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "models/graph_shapes.h"

namespace kvtwin {
namespace {

// Every point of the tables of so many rows and this context becomes longer by `us(rows, context)`, down to
// nothing.
template <typename Us>
void shift(std::string_view operation, const std::string& shape, std::vector<MeasuredTable>* tables, Us us) {
  for (MeasuredTable& table : *tables) {
    if (table.operation != operation || table.shape != shape) continue;
    for (size_t i = 0; i < table.at.size(); ++i) {
      const double more = us(table.rows[i], table.context.empty() ? 0 : table.context[i]);
      Measured& one = table.at[i];
      for (double* value : {&one.us, &one.p10, &one.p90}) *value = std::max(0.0, *value + more);
    }
  }
}

double us_of(const MeasuredDevice& device, Served what) {
  const MeasuredFigure* const figure = device.figure(figure_of(what));
  return figure == nullptr ? 0 : figure->value;
}

// What replays of some number of calls behind few rows take longer: linear between what was served.
class BehindFew {
 public:
  explicit BehindFew(const MeasuredDevice& device) {
    for (size_t i = 0; i < kServedCalls; ++i) {
      const auto what = static_cast<Served>(static_cast<size_t>(Served::kBehindFew2) + i);
      if (device.figure(figure_of(what)) == nullptr) continue;
      calls_.push_back(2u << i), us_.push_back(us_of(device, what));
    }
    if (calls_.empty()) return;
    calls_.push_back(2 * calls_.back()), us_.push_back(0);
  }
  bool known() const { return !calls_.empty(); }
  double at(uint32_t calls) const {
    if (calls_.empty() || calls >= calls_.back()) return 0;
    if (calls <= calls_.front()) return us_.front();
    const auto above =
        static_cast<size_t>(std::upper_bound(calls_.begin(), calls_.end(), calls) - calls_.begin());
    const double share = static_cast<double>(calls - calls_[above - 1]) / (calls_[above] - calls_[above - 1]);
    return us_[above - 1] + (us_[above] - us_[above - 1]) * share;
  }

 private:
  std::vector<uint32_t> calls_;
  std::vector<double> us_;
};

// Replays behind many rows beside those behind few.
MeasuredTable behind_many(const BehindFew& few, double many, const std::string& model) {
  MeasuredTable out{"decode host behind many", model, {}, {}, {}};
  for (uint32_t calls = 1; calls <= 256; calls *= 2) {
    const double more = few.at(calls) == 0 ? 0 : std::max(0.0, many - few.at(calls));
    out.rows.push_back(calls), out.at.push_back({more, more, more});
  }
  return out;
}

}  // namespace

const char* figure_of(Served what) {
  constexpr const char* kNames[kServed] = {"served first step of a form",
                                           "served second step of a form",
                                           "served third step of a form",
                                           "served replay behind many rows",
                                           "served chunks of few rows",
                                           "served replay of up to 2 calls behind few rows",
                                           "served replay of up to 4 calls behind few rows",
                                           "served replay of up to 8 calls behind few rows",
                                           "served replay of up to 16 calls behind few rows",
                                           "served replay of up to 32 calls behind few rows",
                                           "served replay of up to 64 calls behind few rows"};
  return kNames[static_cast<size_t>(what)];
}

// Decodes beside chunks, and the first steps of a form, have the tables of decodes in them too: what these
// lose they get back.
MeasuredDevice as_served(MeasuredDevice device, const std::string& model, const std::string& heads,
                         uint32_t layers) {
  const BehindFew few(device);
  const auto attention = [&](uint32_t calls, uint32_t) { return few.at(calls) / layers; };
  shift("decode attention", heads, &device.tables, attention);
  for (MeasuredKv& format : device.formats) {
    for (const char* decodes : {"decode attention", "decode attention narrow"})
      shift(decodes, heads, &format.tables, attention);
  }
  shift("chunk host mixed", model, &device.tables, [&](uint32_t calls, uint32_t) { return -few.at(calls); });
  shift("form host", model, &device.tables, [&](uint32_t calls, uint32_t use) {
    return use < GraphShapes::kMost ? us_of(device, static_cast<Served>(use)) - few.at(calls) : 0;
  });
  const double rows = us_of(device, Served::kFewRows);
  shift("chunk host", model, &device.tables,
        [&](uint32_t tokens, uint32_t) { return tokens <= GraphShapes::kManyRows ? rows : 0; });
  if (few.known()) device.tables.push_back(behind_many(few, us_of(device, Served::kBehindMany), model));
  return device;
}

}  // namespace kvtwin
