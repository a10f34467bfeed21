// ToolsTable reads tools.csv of a run's folder: the work of sessions between their requests.

#ifndef KVTWIN_REPORTS_PAGE_TOOLS_TABLE_H_
#define KVTWIN_REPORTS_PAGE_TOOLS_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "reports/page/requests_table.h"

namespace kvtwin {

struct ToolsTable {
  std::vector<double> released_s;
  std::vector<float> taken_s;
  std::vector<uint16_t> agent;    // index within its session
  std::vector<uint8_t> inner;     // 1: an agent whose requests are not recorded; 0: a tool
  std::vector<uint32_t> session;  // index into the sessions of the requests

  size_t count() const { return released_s.size(); }
};

// The first `most` tools of sessions that occur in `requests`. `where` is used in messages.
Result<ToolsTable> read_tools(std::string_view csv, const std::string& where, const RequestsTable& requests,
                              size_t most);

}  // namespace kvtwin

#endif  // KVTWIN_REPORTS_PAGE_TOOLS_TABLE_H_
