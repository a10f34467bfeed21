// CsvFile reads small numeric CSV files strictly: known header, fixed columns, no quoting.

#ifndef KVTWIN_MODELS_FILES_CSV_H_
#define KVTWIN_MODELS_FILES_CSV_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

// One row. Getters record the row's first error, so that callers can read on without checks.
class CsvRow {
 public:
  std::string_view text(size_t column) const { return fields_[column]; }
  uint32_t count(size_t column);  // an integer below 2^31
  double real(size_t column, double low, double high);
  void fail(size_t column, const std::string& what_would_be_right);

 private:
  friend class CsvFile;
  std::vector<std::string_view> fields_;
  const std::vector<std::string>* header_ = nullptr;
  std::string error_, hint_;
};

class CsvFile {
 public:
  // Opens `path`, whose first line must be `header`. Reads at most 64 MiB.
  static Result<CsvFile> open(const std::string& path, const std::vector<std::string>& header);
  // Takes `text` with whatever header it has; `path` is for messages.
  static CsvFile of_text(const std::string& path, std::string text);
  const std::vector<std::string>& header() const { return header_; }

  // Stores the next row. Returns false at the end, or an Error about the shape of this row or about a value
  // read from the previous one.
  Result<bool> next(CsvRow* row);
  std::string here() const;  // path:line of the current row

 private:
  std::string path_, text_;
  std::vector<std::string> header_;
  size_t at_ = 0, line_ = 1;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_FILES_CSV_H_
