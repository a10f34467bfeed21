#include "reports/page/csv_records.h"

#include <charconv>

namespace kvtwin {

bool take_record(std::string_view* rest, std::vector<std::string>* cells) {
  cells->clear();
  if (rest->empty()) return false;
  cells->emplace_back();
  bool quoted = false;
  size_t at = 0;
  for (; at < rest->size(); ++at) {
    const char c = (*rest)[at];
    if (quoted) {
      if (c != '"') {
        cells->back().push_back(c);
      } else if (at + 1 < rest->size() && (*rest)[at + 1] == '"') {
        cells->back().push_back('"');
        ++at;
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      cells->emplace_back();
    } else if (c == '\n') {
      ++at;
      break;
    } else if (c != '\r') {
      cells->back().push_back(c);
    }
  }
  rest->remove_prefix(at);
  return true;
}

bool whole(const std::string& text, int64_t* value) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return failed == std::errc{} && end == text.data() + text.size();
}

}  // namespace kvtwin
