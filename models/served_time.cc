#include "models/served_time.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "models/graph_shapes.h"

namespace kvtwin {
namespace {

// Every point of the tables of which `of(rows, context)` holds becomes longer by `us`, down to nothing.
template <typename Of>
void shift(double us, std::string_view operation, const std::string& shape,
           std::vector<MeasuredTable>* tables, Of of) {
  for (MeasuredTable& table : *tables) {
    if (table.operation != operation || table.shape != shape) continue;
    for (size_t i = 0; i < table.at.size(); ++i) {
      if (!of(table.rows[i], table.context.empty() ? 0 : table.context[i])) continue;
      Measured& one = table.at[i];
      for (double* value : {&one.us, &one.p10, &one.p90}) *value = std::max(0.0, *value + us);
    }
  }
}

}  // namespace

const char* figure_of(Served what) {
  constexpr const char* kNames[kServed] = {"served first step of a form",    "served second step of a form",
                                           "served third step of a form",    "served replay behind few rows",
                                           "served replay behind many rows", "served chunks of few rows"};
  return kNames[static_cast<size_t>(what)];
}

// Decodes beside chunks, and the first steps of a form, have the tables of decodes in them too: what these
// lose they get back.
MeasuredDevice as_served(MeasuredDevice device, const std::string& model, const std::string& heads,
                         uint32_t layers) {
  const auto us = [&](Served what) {
    const MeasuredFigure* const figure = device.figure(figure_of(what));
    return figure == nullptr ? 0 : figure->value;
  };
  const auto all = [](uint32_t, uint32_t) { return true; };
  const double few = us(Served::kBehindFew), many = us(Served::kBehindMany);
  shift(few / layers, "decode attention", heads, &device.tables, all);
  for (MeasuredKv& format : device.formats) {
    for (const char* decodes : {"decode attention", "decode attention narrow"})
      shift(few / layers, decodes, heads, &format.tables, all);
  }
  shift(-few, "chunk host mixed", model, &device.tables, all);
  for (uint32_t use = 0; use < GraphShapes::kMost; ++use) {
    shift(us(static_cast<Served>(use)) - few, "form host", model, &device.tables,
          [use](uint32_t, uint32_t context) { return context == use; });
  }
  shift(us(Served::kFewRows), "chunk host", model, &device.tables,
        [](uint32_t rows, uint32_t) { return rows <= GraphShapes::kManyRows; });
  if (device.figure(figure_of(Served::kBehindMany)) != nullptr) {
    const double more = std::max(0.0, many - few);
    device.tables.push_back({"decode host behind many", model, {1}, {}, {{more, more, more}}});
  }
  return device;
}

}  // namespace kvtwin
