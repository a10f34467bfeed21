// timeline.json: the trace event format of chrome://tracing.

#include <fmt/format.h>

#include <iterator>

#include "scenarios/output/timeline.h"

namespace kvtwin {
namespace {

using Kind = TimelineMark::Kind;

// Microseconds, the format's unit, with nanoseconds as decimals.
std::string us(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string arguments(const TimelineMark& mark) {
  std::string out;
  for (const TimelineMark::Number& number : mark.numbers) {
    if (number.name == nullptr) break;
    fmt::format_to(std::back_inserter(out), R"({}"{}":{})", out.empty() ? "" : ",", number.name,
                   number.value);
  }
  if (mark.result != nullptr) fmt::format_to(std::back_inserter(out), R"(,"result":"{}")", mark.result);
  return out;
}

std::string row_of(const TimelineMark& mark) {
  switch (mark.kind) {
    case Kind::kSpan:
      return fmt::format(R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                         mark.name, mark.engine, static_cast<int>(mark.row), us(mark.from.ns),
                         us((mark.to - mark.from).ns), arguments(mark));
    case Kind::kCounts:
      return fmt::format(R"({{"ph":"C","name":"{}","pid":{},"ts":{},"args":{{{}}}}})", mark.name, mark.engine,
                         us(mark.from.ns), arguments(mark));
    case Kind::kBegin:
    case Kind::kInstantEvent:
    case Kind::kEnd:
      break;
  }
  const char* phase = mark.kind == Kind::kBegin ? "b" : mark.kind == Kind::kEnd ? "e" : "n";
  return fmt::format(R"({{"ph":"{}","cat":"request","name":"{}","id":{},"pid":{},"tid":{},"ts":{}}})", phase,
                     mark.name, raw(mark.request), mark.engine, static_cast<int>(mark.row), us(mark.from.ns));
}

}  // namespace

std::string Timeline::json() const {
  std::vector<std::string> rows;
  for (size_t i = 0; i < engines_.size(); ++i) {
    rows.push_back(
        fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"engine {}"}}}})", i, i));
    for (const TimelineRow row : {TimelineRow::kSteps, TimelineRow::kIn, TimelineRow::kOut,
                                  TimelineRow::kRequests, TimelineRow::kOperations}) {
      if (row == TimelineRow::kOperations && !operations_) continue;
      rows.push_back(
          fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", i,
                      static_cast<int>(row), name_of(row)));
    }
  }
  for (const TimelineMark& mark : marks_) rows.push_back(row_of(mark));
  return fmt::format("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n", fmt::join(rows, ",\n"));
}

}  // namespace kvtwin
