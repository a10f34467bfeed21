// Quotes a value for CSV (RFC 4180) where necessary.

#ifndef KVTWIN_SCENARIOS_OUTPUT_CSV_CELL_H_
#define KVTWIN_SCENARIOS_OUTPUT_CSV_CELL_H_

#include <string>
#include <string_view>

namespace kvtwin {

inline std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos) return std::string(text);
  std::string out(1, '"');
  for (const char c : text) out.append(c == '"' ? 2 : 1, c);
  out.push_back('"');
  return out;
}

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_CSV_CELL_H_
