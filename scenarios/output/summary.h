// A run's result as text: a table for people, or flat records for programs.

#ifndef KVTWIN_SCENARIOS_OUTPUT_SUMMARY_H_
#define KVTWIN_SCENARIOS_OUTPUT_SUMMARY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "traces/proto/run.pb.h"

namespace kvtwin {

enum class OutputFormat : uint8_t { kTable, kJson, kJsonl, kCsv };

struct SummaryContext {
  std::optional<double> wall_s;  // how long the simulation took; for people, never in files
  std::string details;           // the result's directory; "" if none was written
  std::string repeat;            // the command that repeats the run
  // Host time of the role tagger per prompt token; for people.
  std::optional<double> tagging_ns = {};
};

// Ends with a newline. json and jsonl are one flat object, csv is a header and a row.
std::string format_summary(const v1::RunResult& result, OutputFormat format, const SummaryContext& context);

// "12,031".
std::string grouped(uint64_t value);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_SUMMARY_H_
