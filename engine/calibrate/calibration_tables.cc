#include "engine/calibrate/calibration_tables.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"

namespace kvtwin::cuda {
namespace {

constexpr uint32_t kLongChunk = 512;

Measured less(const Measured& m, double us) {
  const auto one = [us](double value) { return std::max(0.0, value - us); };
  return {one(m.us), one(m.p10), one(m.p90)};
}

Measured times(const Measured& m, double factor) { return {m.us * factor, m.p10 * factor, m.p90 * factor}; }

double event_us(const TimedStep& step) {
  double sum = 0;
  for (const TimedStep::Part& part : step.parts) sum += part.time.us * part.count;
  return (sum - step.wall.us) / step.events;
}

}  // namespace

Measured CalibrationTables::keep(const char* operation, const std::string& shape, uint32_t rows,
                                 uint32_t context, const Measured& value) {
  return tables_[{operation, shape}].emplace(std::pair(rows, context), value).first->second;
}

Measured middle_of(std::vector<double> us) {
  KVT_CHECK(!us.empty());
  Measured out = measured_of(us);
  std::sort(us.begin(), us.end());
  const size_t out_of = us.size() / 5;
  out.us = std::accumulate(us.begin() + static_cast<ptrdiff_t>(out_of),
                           us.end() - static_cast<ptrdiff_t>(out_of), 0.0) /
           static_cast<double>(us.size() - 2 * out_of);
  out.p10 = std::min(out.p10, out.us), out.p90 = std::max(out.p90, out.us);
  return out;
}

// An event adds to the operation before it: the start of the next one no longer overlaps its end, and the
// device may wait for a slow host. The amount is the excess of the sum of operations over the step: the
// median over long chunks, for which no host is too slow (with other clock speeds some of them show more, or
// none). Another step uses its own excess if that is larger.
CalibrationTables::Found CalibrationTables::take_steps() {
  std::vector<double> events;
  for (const TimedStep& step : steps_) {
    if (step.chunk && step.rows >= kLongChunk && step.wall.us > 0) events.push_back(event_us(step));
  }
  Found out;
  out.event_us = events.empty() ? 0 : std::max(0.0, measured_of(events).us);
  std::map<std::pair<bool, uint32_t>, Base> bases;
  for (const TimedStep& step : steps_) {
    const auto [found, is_new] = bases.try_emplace({step.chunk, step.rows});
    if (!is_new) {
      take_further(step, found->second);
      continue;
    }
    found->second = take_first(step, std::max(out.event_us, event_us(step)));
    out.host_percent.push_back(100 * found->second.host / step.wall.us);
  }
  return out;
}

// Returns null if no table contains it yet.
const Measured* CalibrationTables::find(const TimedStep::Part& part) const {
  const auto table = tables_.find({part.operation, part.shape});
  if (table == tables_.end()) return nullptr;
  const auto at = table->second.find({part.rows, part.context});
  return at == table->second.end() ? nullptr : &at->second;
}

// Operations of many rows were timed once, at some clock speed; whole steps were timed often, at all of them.
// Durations of operations are therefore scaled to the step.
double CalibrationTables::fraction(const TimedStep& step, double event) const {
  double known = 0, sum = 0;
  for (const TimedStep::Part& part : step.parts) {
    if (const Measured* const found = find(part)) {
      known += found->us * part.count;
    } else {
      sum += less(part.time, event).us * part.count;
    }
  }
  return sum > 0 && step.wall.us > known ? (step.wall.us - known) / sum : 1;
}

// The step with the shortest context. The part of the step that its operations in the tables do not explain
// is host time. For few rows, the tables contain durations of operations in a decode step's graph; a step
// with a prompt launches them one by one, and its host time includes the difference.
CalibrationTables::Base CalibrationTables::take_first(const TimedStep& step, double event) {
  Base out{0, 0, event};
  double sum = 0;
  const double factor = step.chunk && step.rows > kFewRows ? fraction(step, event) : 1;
  for (const TimedStep::Part& part : step.parts) {
    const Measured net = times(less(part.time, event), factor);
    if (part.attention) out.attention = net.us;
    sum += (part.retained ? keep(part.operation.c_str(), part.shape, part.rows, part.context, net) : net).us *
           part.count;
  }
  out.host = std::max(0.0, step.wall.us - sum);
  const Measured host{out.host, std::max(0.0, out.host - (step.wall.us - step.wall.p10)),
                      out.host + (step.wall.p90 - step.wall.us)};
  keep(step.chunk ? "chunk host" : "decode host", model_, step.rows, 0, host);
  if (const auto found = launching_.find(step.rows); !step.chunk && found != launching_.end())
    keep("launched host", model_, step.rows, 0, less(host, -found->second));
  return out;
}

// A step of the same rows with a longer context: only attention is new. It is not scaled to the clock of the
// step without a context, which is another.
void CalibrationTables::take_further(const TimedStep& step, const Base& base) {
  for (const TimedStep::Part& part : step.parts) {
    if (!part.attention || !part.retained) continue;
    keep(part.operation.c_str(), part.shape, part.rows, part.context,
         step.events > 0 ? less(part.time, base.event) : longer_step(step, base));
  }
}

// Attention of a step without events: that of the step with the shortest context and the additional duration.
Measured CalibrationTables::longer_step(const TimedStep& step, const Base& base) const {
  const double us = std::max(0.0, base.attention + (step.wall.us - step.beside.us) / layers_);
  return {us, std::max(0.0, us - (step.wall.us - step.wall.p10) / layers_),
          us + (step.wall.p90 - step.wall.us) / layers_};
}

std::vector<MeasuredTable> CalibrationTables::tables() const {
  std::vector<MeasuredTable> out;
  for (const auto& [name, sizes] : tables_) {
    MeasuredTable table{name.first, name.second, {}, {}, {}};
    const bool flat =
        std::all_of(sizes.begin(), sizes.end(), [](const auto& s) { return s.first.second == 0; });
    for (const auto& [size, value] : sizes) {
      table.rows.push_back(size.first);
      if (!flat) table.context.push_back(size.second);
      table.at.push_back(value);
    }
    out.push_back(std::move(table));
  }
  return out;
}

}  // namespace kvtwin::cuda
