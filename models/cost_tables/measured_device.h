// MeasuredDevice: the measurements of one GPU, operation by operation (kvtwin calibrate device), read from
// and written to a textproto. measured_cost.h documents the tables and prices steps with them.

#ifndef KVTWIN_MODELS_COST_TABLES_MEASURED_DEVICE_H_
#define KVTWIN_MODELS_COST_TABLES_MEASURED_DEVICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

// Median and percentiles of repetitions, in us.
struct Measured {
  double us = 0, p10 = 0, p90 = 0;
};
// REQUIRES: not empty. Percentiles are nearest-rank.
Measured measured_of(std::vector<double> us);

struct MeasuredTable {
  std::string operation, shape;
  std::vector<uint32_t> rows;     // ascending, with `context`
  std::vector<uint32_t> context;  // as long as rows; empty: the operation has one size only
  std::vector<Measured> at;       // as long as rows
};

struct MeasuredFigure {
  std::string name, unit;
  double value = 0, p10 = 0, p90 = 0;
};

struct HeldOutStep {
  std::string step;
  double measured_us = 0, predicted_us = 0;
  double error() const { return predicted_us / measured_us - 1; }
};

// What KV methods add to steps of the dense engine, by family of operations (operation_cost.h).
struct MeasuredOperations {
  struct Price {
    std::string of;  // name_of(Family)
    double ns = 0;
  };
  std::vector<Price> prices;
  uint32_t steps = 0;                      // number of steps that they were measured on
  double error_median = 0, error_p90 = 0;  // relative, of other steps
  std::string model{};                     // that they were measured with; "": the file's
};

// KV in a format other than bf16: its own tables of attention (measured_cost.h).
struct MeasuredKv {
  std::string name;  // policies.precision
  uint32_t page_tokens = 0, group = 0;
  std::vector<MeasuredTable> tables;

  const MeasuredTable* table(std::string_view operation, std::string_view shape) const;  // null: none
};

struct MeasuredDevice {
  std::string gpu, driver, cuda, build, date, model;
  uint32_t sm_count = 0, sm_mhz_min = 0, sm_mhz_max = 0, memory_mhz = 0, page_tokens = 0;
  std::vector<MeasuredTable> tables;
  std::vector<MeasuredFigure> figures;
  std::vector<HeldOutStep> held_out;
  std::optional<MeasuredOperations> operations;
  std::vector<MeasuredKv> formats;

  // Null: not measured.
  const MeasuredTable* table(std::string_view operation, std::string_view shape) const;
  const MeasuredFigure* figure(std::string_view name) const;
  const MeasuredKv* format(std::string_view name) const;
};

// Copies of pages between tiers: a fixed time per copy, and the rate of its bytes. Both directions together
// reach both_bytes_per_s; 0: not measured.
struct CopyRates {
  double in_overhead_ns = 0, out_overhead_ns = 0, in_bytes_per_s = 0, out_bytes_per_s = 0;
  double both_bytes_per_s = 0;
  bool exact = false;  // pages of this size were measured; else it lies between measured ones, or beyond them
};
// From the tables "copy in during steps" and "copy out during steps" of pages of any size (where there are
// none: "copy in" and "copy out", of copies alone), interpolated over the bytes of a page. Empty: no size was
// measured.
std::optional<CopyRates> copy_rates(const MeasuredDevice& device, uint64_t page_bytes);

// `where` is for messages. Refuses tables that do not ascend, differ in length, or are negative.
Result<MeasuredDevice> parse_measured_device(std::string_view text, const std::string& where);
Result<MeasuredDevice> load_measured_device(const std::string& path);
// The .textproto files of a folder, sorted; none if it cannot be read.
std::vector<std::string> profile_files(const std::string& folder);
std::string measured_device_textproto(const MeasuredDevice& device);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_MEASURED_DEVICE_H_
