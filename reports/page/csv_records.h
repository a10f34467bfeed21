// The records of a CSV text that kvtwin wrote.

#ifndef KVTWIN_REPORTS_PAGE_CSV_RECORDS_H_
#define KVTWIN_REPORTS_PAGE_CSV_RECORDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

// RFC 4180: one record from the front of *rest; false at the end of the text.
bool take_record(std::string_view* rest, std::vector<std::string>* cells);

// Whether all of `text` is a decimal whole number, which *value then is.
bool whole(const std::string& text, int64_t* value);

}  // namespace kvtwin

#endif  // KVTWIN_REPORTS_PAGE_CSV_RECORDS_H_
