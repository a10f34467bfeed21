#include "models/cost_tables/served_time.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "models/cost/graph_shapes.h"

namespace kvtwin {
namespace {

// Adds `us(rows, context)` to every point of the tables of `operation` and `shape`; times stay at least 0.
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

// The additional time of replays of a number of requests after a step of few tokens: linear between what was
// served.
class BehindFew {
 public:
  explicit BehindFew(const MeasuredDevice& device) {
    for (size_t i = 0; i < kServedRequests; ++i) {
      const auto what = static_cast<Served>(static_cast<size_t>(Served::kBehindFew2) + i);
      if (device.figure(figure_of(what)) == nullptr) continue;
      requests_.push_back(2u << i), us_.push_back(us_of(device, what));
    }
    if (requests_.empty()) return;
    requests_.push_back(2 * requests_.back()), us_.push_back(0);
  }
  bool known() const { return !requests_.empty(); }
  double at(uint32_t requests) const {
    if (requests_.empty() || requests >= requests_.back()) return 0;
    if (requests <= requests_.front()) return us_.front();
    const auto above = static_cast<size_t>(std::upper_bound(requests_.begin(), requests_.end(), requests) -
                                           requests_.begin());
    const double fraction =
        static_cast<double>(requests - requests_[above - 1]) / (requests_[above] - requests_[above - 1]);
    return us_[above - 1] + (us_[above] - us_[above - 1]) * fraction;
  }

 private:
  std::vector<uint32_t> requests_;
  std::vector<double> us_;
};

// The additional time of replays after a step of many tokens over those after one of few.
MeasuredTable behind_many(const BehindFew& few, double many, const std::string& model) {
  MeasuredTable out{"decode host behind many", model, {}, {}, {}};
  for (uint32_t requests = 1; requests <= 256; requests *= 2) {
    const double more = few.at(requests) == 0 ? 0 : std::max(0.0, many - few.at(requests));
    out.rows.push_back(requests), out.at.push_back({more, more, more});
  }
  return out;
}

}  // namespace

const char* figure_of(Served what) {
  constexpr const char* kNames[kServed] = {"served replay behind many rows",
                                           "served chunks of few rows",
                                           "served replay of up to 2 requests behind few rows",
                                           "served replay of up to 4 requests behind few rows",
                                           "served replay of up to 8 requests behind few rows",
                                           "served replay of up to 16 requests behind few rows",
                                           "served replay of up to 32 requests behind few rows",
                                           "served replay of up to 64 requests behind few rows"};
  return kNames[static_cast<size_t>(what)];
}

// The tables of decodes are also part of steps with chunks, and of steps that are launched kernel by kernel:
// what the tables lose here is added to those steps.
MeasuredDevice as_served(MeasuredDevice device, const std::string& model, const std::string& heads,
                         uint32_t layers) {
  const BehindFew few(device);
  const auto attention = [&](uint32_t requests, uint32_t) { return few.at(requests) / layers; };
  shift("decode attention", heads, &device.tables, attention);
  for (MeasuredKv& format : device.formats) {
    for (const char* decodes : {"decode attention", "decode attention low-bit"})
      shift(decodes, heads, &format.tables, attention);
  }
  shift("chunk host mixed", model, &device.tables,
        [&](uint32_t requests, uint32_t) { return -few.at(requests); });
  shift("launched host", model, &device.tables,
        [&](uint32_t requests, uint32_t) { return -few.at(requests); });
  const double rows = us_of(device, Served::kFewRows);
  shift("chunk host", model, &device.tables,
        [&](uint32_t tokens, uint32_t) { return tokens <= GraphShapes::kManyRows ? rows : 0; });
  if (few.known()) device.tables.push_back(behind_many(few, us_of(device, Served::kBehindMany), model));
  return device;
}

}  // namespace kvtwin
