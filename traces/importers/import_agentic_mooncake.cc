// agentic_mooncake: rows name the rows that they wait for; sessions are the connected parts of that graph.
//
// A row without wait_for starts at its timestamp. Any other starts when all rows that it waits for are done,
// plus tool_wait_ms (a ToolCall node of unknown name) plus delay (think_ns).

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "traces/importers/importers.h"
#include "traces/importers/mooncake.h"

namespace kvtwin {
namespace {

class AgenticImport {
 public:
  AgenticImport(const std::string& path, std::vector<MooncakeRow> rows)
      : path_(path), rows_(std::move(rows)) {}

  Result<void> link() {
    std::map<std::string, size_t> row_of;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].request.empty())
        return problem(i, "has no \"request_id\"", "a name that wait_for can use");
      if (!row_of.emplace(rows_[i].request, i).second) {
        return problem(i, fmt::format("request_id '{}' is there twice", rows_[i].request), "each once");
      }
    }
    part_.resize(rows_.size());
    std::iota(part_.begin(), part_.end(), size_t{0});
    waits_.resize(rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      for (const std::string& name : rows_[i].wait_for) {
        const auto it = row_of.find(name);
        if (it == row_of.end())
          return problem(i, fmt::format("waits for '{}'", name), "a request_id of this file");
        waits_[i].push_back(it->second);
        part_[part(i)] = part(it->second);
      }
      std::sort(waits_[i].begin(), waits_[i].end());
      waits_[i].erase(std::unique(waits_[i].begin(), waits_[i].end()), waits_[i].end());
      if (waits_[i].empty() && !rows_[i].at_ns) {
        return problem(i, "has neither wait_for nor a timestamp", "one of them says when it starts");
      }
    }
    return order();
  }

  Result<void> emit(TraceSink* sink) {
    std::map<size_t, std::vector<size_t>> sessions;  // part -> its rows in topological order
    for (const size_t i : order_) sessions[part(i)].push_back(i);
    std::vector<std::pair<int64_t, size_t>> arrivals;
    for (const auto& [key, members] : sessions) {
      int64_t arrival = INT64_MAX;
      for (const size_t i : members) {
        if (waits_[i].empty()) arrival = std::min(arrival, *rows_[i].at_ns);
      }
      arrivals.emplace_back(arrival, key);
    }
    std::sort(arrivals.begin(), arrivals.end());
    for (const auto& [arrival, key] : arrivals) {
      if (auto good = sink->session(session(sessions[key], arrival)); !good) return good;
    }
    return {};
  }

  const std::vector<MooncakeRow>& rows() const { return rows_; }

 private:
  tl::unexpected<Error> problem(size_t i, std::string what, std::string hint) const {
    return make_error(fmt::format("{}:{}", path_, rows_[i].line), std::move(what), std::move(hint));
  }

  size_t part(size_t i) {
    while (part_[i] != i) i = part_[i] = part_[part_[i]];
    return i;
  }

  // Orders rows after those that they wait for, else in file order.
  Result<void> order() {
    std::vector<uint32_t> missing(rows_.size());
    std::vector<std::vector<size_t>> followers(rows_.size());
    std::vector<size_t> ready;
    for (size_t i = 0; i < rows_.size(); ++i) {
      missing[i] = static_cast<uint32_t>(waits_[i].size());
      for (const size_t before : waits_[i]) followers[before].push_back(i);
      if (missing[i] == 0) ready.push_back(i);
    }
    std::make_heap(ready.begin(), ready.end(), std::greater<>());
    while (!ready.empty()) {
      std::pop_heap(ready.begin(), ready.end(), std::greater<>());
      const size_t i = ready.back();
      ready.pop_back();
      order_.push_back(i);
      for (const size_t after : followers[i]) {
        if (--missing[after] != 0) continue;
        ready.push_back(after);
        std::push_heap(ready.begin(), ready.end(), std::greater<>());
      }
    }
    if (order_.size() == rows_.size()) return {};
    const auto stuck = std::find_if(missing.begin(), missing.end(), [](uint32_t n) { return n != 0; });
    return problem(static_cast<size_t>(stuck - missing.begin()), "waits, through others, for itself",
                   "wait_for without circles");
  }

  v1::Session session(const std::vector<size_t>& members, int64_t arrival) const {
    v1::Session session;
    const MooncakeRow& first = rows_[members.front()];
    start_mooncake_session(first.session.empty() ? first.request : first.session, arrival, &session);
    std::map<size_t, uint32_t> node_of;
    for (const size_t i : members) {
      const MooncakeRow& row = rows_[i];
      int tool = -1;
      if (row.tool_ns.value_or(0) > 0 && !waits_[i].empty()) {
        tool = session.nodes_size();
        v1::Node& node = *session.add_nodes();
        node.mutable_tool()->set_duration_ns(*row.tool_ns);
        for (const size_t before : waits_[i]) depend(node_of.at(before), v1::DEP_CONTROL, &node);
      }
      v1::Node& node = *add_mooncake_request(row, true, &session);
      node_of[i] = static_cast<uint32_t>(session.nodes_size() - 1);
      node.mutable_llm()->set_think_ns(waits_[i].empty() ? 0 : row.delay_ns.value_or(0));
      if (row.at_ns)
        node.mutable_llm()->set_recorded_at_ns(*row.at_ns);
      else
        mark(&node, v1::LlmRequest::kRecordedAtNsFieldNumber, v1::UNKNOWN);
      if (waits_[i].empty()) node.set_start_offset_ns(*row.at_ns - arrival);
      for (const size_t before : waits_[i]) {
        const bool data = common_blocks(rows_[before].ids, row.ids) > 0;
        if (tool < 0 || data) depend(node_of.at(before), data ? v1::DEP_DATA : v1::DEP_CONTROL, &node);
      }
      if (tool >= 0) depend(static_cast<uint32_t>(tool), v1::DEP_CONTROL, &node);
    }
    return session;
  }

  static void depend(uint32_t on, v1::DepKind kind, v1::Node* node) {
    v1::Dep& dep = *node->add_deps();
    dep.set_node(on);
    dep.set_kind(kind);
  }

  const std::string& path_;
  const std::vector<MooncakeRow> rows_;
  std::vector<std::vector<size_t>> waits_;
  std::vector<size_t> part_;  // union-find over rows
  std::vector<size_t> order_;
};

}  // namespace

Result<void> import_agentic_mooncake(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  const uint32_t block = options.block_tokens != 0 ? options.block_tokens : kMooncakeBlockTokens;
  auto rows = read_mooncake_rows(path, block);
  if (!rows) return tl::unexpected(rows.error());
  AgenticImport import(path, std::move(*rows));
  if (auto good = import.link(); !good) return good;
  v1::TraceHeader header = mooncake_header("agentic_mooncake", path, options, import.rows());
  header.set_request_arrivals(v1::ARR_CLOSED_LOOP);
  add_policy(&header, "ToolCall.duration_ns", v1::RECORDED);
  if (auto good = sink->header(header); !good) return good;
  if (auto good = import.emit(sink); !good) return good;
  return sink->done();
}

}  // namespace kvtwin
