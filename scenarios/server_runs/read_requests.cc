#include <algorithm>
#include <cmath>

#include "scenarios/output/compare.h"
#include "scenarios/server_runs/measured.h"

namespace kvtwin {

Result<MeasuredRun> read_request_log(std::string_view text, const std::string& where) {
  const Result<std::vector<Request>> log = parse_requests(text, where);
  if (!log) return tl::unexpected<Error>(log.error());
  const auto begin_s = [](const Request& one) { return one.arrival_s.value_or(one.queued_s); };
  double first = INFINITY;
  for (const Request& one : *log) first = std::min(first, begin_s(one));
  MeasuredRun run;
  run.name = "requests";
  for (const Request& one : *log) {
    MeasuredRequest& measured = run.requests.emplace_back();
    measured.prompt = one.input_tokens, measured.output = one.output_tokens;
    measured.begin_s = begin_s(one) - first;
    measured.first_s = one.first_token_s - first, measured.end_s = one.last_token_s - first;
  }
  if (run.requests.empty()) return make_error(where, "holds no request");
  if (const Result<void> good = check_requests(run, where); !good) return tl::unexpected<Error>(good.error());
  return run;
}

}  // namespace kvtwin
