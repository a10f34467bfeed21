// Parses records of a CSV text that kvtwin wrote.

#ifndef KVTWIN_REPORTS_PAGE_CSV_RECORDS_H_
#define KVTWIN_REPORTS_PAGE_CSV_RECORDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

// Takes one record (RFC 4180) from the front of *rest; false at the end of the text.
bool take_record(std::string_view* rest, std::vector<std::string>* cells);

// True if all of `text` is a decimal whole number; stores it in *value.
bool whole(const std::string& text, int64_t* value);

}  // namespace kvtwin

#endif  // KVTWIN_REPORTS_PAGE_CSV_RECORDS_H_
