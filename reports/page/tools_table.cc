#include "reports/page/tools_table.h"

#include <fmt/format.h>

#include <array>
#include <map>

#include "reports/page/csv_records.h"

namespace kvtwin {
namespace {

constexpr std::string_view kHead = "session,replica,node,agent,kind,released_ns,finished_ns";
enum ToolsColumn {
  kToolSession,
  kToolReplica,
  kToolNode,
  kToolAgent,
  kToolKind,
  kToolReleased,
  kToolFinished,
  kToolColumns
};

}  // namespace

Result<ToolsTable> read_tools(std::string_view csv, const std::string& where, const RequestsTable& requests,
                              size_t most) {
  std::vector<std::string> cells;
  if (csv.substr(0, csv.find('\n')) != kHead)
    return make_error(where + ":1", "was not written by this version of kvtwin", "run the scenario again");
  take_record(&csv, &cells);
  std::map<std::string, uint32_t> sessions;
  for (const std::string& name : requests.sessions)
    sessions.emplace(name, static_cast<uint32_t>(sessions.size()));
  ToolsTable out;
  for (uint64_t line = 2; out.count() < most && take_record(&csv, &cells); ++line) {
    std::array<int64_t, kToolColumns> values{};
    bool good = cells.size() == kToolColumns && (cells[kToolKind] == "tool" || cells[kToolKind] == "agent");
    for (const ToolsColumn c : {kToolAgent, kToolReleased, kToolFinished})
      good = good && whole(cells[c], &values[c]) && values[c] >= 0;
    if (!good || values[kToolFinished] < values[kToolReleased] || values[kToolAgent] > UINT16_MAX)
      return make_error(fmt::format("{}:{}", where, line),
                        "is not a tool with a session, an agent and two times", "run the scenario again");
    const auto session = sessions.find(session_name(cells[kToolSession], cells[kToolReplica]));
    if (session == sessions.end()) continue;  // none of its requests finished
    out.released_s.push_back(static_cast<double>(values[kToolReleased]) / 1e9);
    out.taken_s.push_back(
        static_cast<float>(static_cast<double>(values[kToolFinished] - values[kToolReleased]) / 1e9));
    out.agent.push_back(static_cast<uint16_t>(values[kToolAgent]));
    out.inner.push_back(cells[kToolKind] == "agent");
    out.session.push_back(session->second);
  }
  return out;
}

}  // namespace kvtwin
