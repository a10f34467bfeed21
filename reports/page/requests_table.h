// RequestsTable reads requests.csv of a run's folder: finished requests as columns, times in seconds.

#ifndef KVTWIN_REPORTS_PAGE_REQUESTS_TABLE_H_
#define KVTWIN_REPORTS_PAGE_REQUESTS_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

struct RequestsTable {
  std::vector<double> ready_s;
  std::vector<float> queue_s, ttft_s, e2e_s;  // from ready
  std::vector<uint32_t> prompt, output, reused;
  std::vector<uint16_t> agent;        // index within its session, 0 the first; empty if the file has none
  std::vector<uint32_t> session;      // index into `sessions`
  std::vector<std::string> sessions;  // in order of their first request

  size_t count() const { return ready_s.size(); }
  // Every k-th request, so that at most `most` remain; sessions stay.
  RequestsTable thinned(size_t most) const;
};

// "coding-000004" of the first replica, "coding-000004/1" of the next.
std::string session_name(const std::string& session, const std::string& replica);

// `where` is used in messages.
Result<RequestsTable> read_requests(std::string_view csv, const std::string& where);

}  // namespace kvtwin

#endif  // KVTWIN_REPORTS_PAGE_REQUESTS_TABLE_H_
