#include "reports/page/requests_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "reports/page/csv_records.h"

namespace kvtwin {
namespace {

// The columns to read, in the order of Row.
constexpr std::array<std::string_view, 10> kColumns = {
    "session",       "replica",  "end",         "prompt_tokens",  "output_tokens",
    "reused_tokens", "ready_ns", "admitted_ns", "first_token_ns", "finished_ns"};
enum RequestsColumn {
  kSession,
  kReplica,
  kEnd,
  kPrompt,
  kOutput,
  kReused,
  kReady,
  kAdmitted,
  kFirst,
  kFinished
};

float seconds(int64_t from_ns, int64_t to_ns) {
  return static_cast<float>(static_cast<double>(to_ns - from_ns) / 1e9);
}

}  // namespace

std::string session_name(const std::string& session, const std::string& replica) {
  return replica == "0" ? session : session + "/" + replica;
}

Result<RequestsTable> read_requests(std::string_view csv, const std::string& where) {
  std::vector<std::string> cells;
  std::array<size_t, kColumns.size()> places{};
  take_record(&csv, &cells);
  for (size_t c = 0; c < kColumns.size(); ++c) {
    const auto found = std::find(cells.begin(), cells.end(), kColumns[c]);
    if (found == cells.end())
      return make_error(where + ":1", fmt::format("has no column \"{}\"", kColumns[c]),
                        "run the scenario again");
    places[c] = static_cast<size_t>(found - cells.begin());
  }
  const size_t width = cells.size();
  // Measured runs, and those of earlier versions, have no agents.
  const auto agent_at = static_cast<size_t>(std::find(cells.begin(), cells.end(), "agent") - cells.begin());
  RequestsTable out;
  std::map<std::string, uint32_t> sessions;
  for (uint64_t line = 2; take_record(&csv, &cells); ++line) {
    const auto problem = [&](std::string what) {
      return make_error(fmt::format("{}:{}", where, line), std::move(what), "run the scenario again");
    };
    if (cells.size() != width)
      return problem(fmt::format("has {} columns, the first line {}", cells.size(), width));
    if (cells[places[kEnd]] != "finished") continue;
    std::array<int64_t, kColumns.size()> values{};
    for (size_t c = kPrompt; c < kColumns.size(); ++c) {
      // A real server need not report what it reused.
      if (c == kReused && cells[places[c]].empty()) continue;
      if (!whole(cells[places[c]], &values[c]) || values[c] < 0)
        return problem(fmt::format("{} is \"{}\", not a whole number", kColumns[c], cells[places[c]]));
    }
    int64_t agent = 0;
    if (agent_at < width && (!whole(cells[agent_at], &agent) || agent < 0 || agent > UINT16_MAX))
      return problem(fmt::format("agent is \"{}\", not a whole number below 65,536", cells[agent_at]));
    if (agent_at < width) out.agent.push_back(static_cast<uint16_t>(agent));
    const std::string name = session_name(cells[places[kSession]], cells[places[kReplica]]);
    const auto session = sessions.emplace(name, static_cast<uint32_t>(sessions.size()));
    if (session.second) out.sessions.push_back(name);
    out.session.push_back(session.first->second);
    out.ready_s.push_back(static_cast<double>(values[kReady]) / 1e9);
    out.queue_s.push_back(seconds(values[kReady], values[kAdmitted]));
    out.ttft_s.push_back(seconds(values[kReady], values[kFirst]));
    out.e2e_s.push_back(seconds(values[kReady], values[kFinished]));
    out.prompt.push_back(static_cast<uint32_t>(values[kPrompt]));
    out.output.push_back(static_cast<uint32_t>(values[kOutput]));
    out.reused.push_back(static_cast<uint32_t>(values[kReused]));
  }
  return out;
}

RequestsTable RequestsTable::thinned(size_t most) const {
  if (count() <= most) return *this;
  const size_t step = (count() + most - 1) / most;
  RequestsTable out;
  out.sessions = sessions;
  for (size_t i = 0; i < count(); i += step) {
    out.ready_s.push_back(ready_s[i]);
    out.queue_s.push_back(queue_s[i]);
    out.ttft_s.push_back(ttft_s[i]);
    out.e2e_s.push_back(e2e_s[i]);
    out.prompt.push_back(prompt[i]);
    out.output.push_back(output[i]);
    out.reused.push_back(reused[i]);
    out.session.push_back(session[i]);
    if (!agent.empty()) out.agent.push_back(agent[i]);
  }
  return out;
}

}  // namespace kvtwin
