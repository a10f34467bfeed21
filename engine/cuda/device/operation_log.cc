#include "engine/cuda/device/operation_log.h"

#include <fmt/format.h>

#include <iterator>

namespace kvtwin::cuda {

void OperationLog::add(EngineId engine, StepOperations step) {
  Row row;
  row.engine = engine;
  for (const OperationTime& one : step.times) {
    const auto kind = static_cast<size_t>(one.operation);
    ++row.count[kind];
    row.total[kind].ns += one.to.ns - one.from.ns;
  }
  if (details_) retained_[{engine, step.step}] = std::move(step.times);
  step.times.clear();
  row.step = std::move(step);
  rows_.push_back(std::move(row));
}

std::vector<OperationTime> OperationLog::take(EngineId engine, StepId step) {
  const auto found = retained_.find({engine, step});
  if (found == retained_.end()) return {};
  std::vector<OperationTime> out = std::move(found->second);
  retained_.erase(found);
  return out;
}

std::string OperationLog::csv() const {
  std::string out =
      "engine,step,rows,samples,decode_rows,decode_entries,chunk_entries,issued_ns,step_ns,operation,count,"
      "device_ns\n";
  for (const Row& row : rows_) {
    const StepOperations& step = row.step;
    for (size_t kind = 0; kind < kOperations; ++kind) {
      if (row.count[kind] == 0) continue;
      fmt::format_to(std::back_inserter(out), "{},{},{},{},{},{},{},{},{},{},{},{}\n", raw(row.engine),
                     raw(step.step), step.rows, step.samples, step.decode_rows, step.decode_entries,
                     step.chunk_entries, step.issued.ns, step.ended.ns, name_of(static_cast<Operation>(kind)),
                     row.count[kind], row.total[kind].ns);
    }
  }
  return out;
}

}  // namespace kvtwin::cuda
