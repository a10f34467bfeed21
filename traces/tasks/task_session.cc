#include "traces/tasks/task_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "traces/tasks/make_task.h"

namespace kvtwin::task {
namespace {

constexpr int64_t kToolNs = 200'000'000, kThinkNs = 2'000'000'000;

}  // namespace

TaskSession::TaskSession(const TaskPlan& plan, uint64_t index)
    : plan_(plan),
      draws_(draw({plan.seed, index})),
      session_(fmt::format("{}-{:06}", plan.task, index), plan.task, 0),
      agent_(&session_, session_.add_agent("main", "agent", 0)) {}

Ids TaskSession::some(uint32_t first, uint32_t kinds, uint32_t count) {
  Ids all(kinds);
  std::iota(all.begin(), all.end(), first);
  count = std::min(count, kinds);
  for (uint32_t i = 0; i < count; ++i) std::swap(all[i], all[i + below(kinds - i)]);
  all.resize(count);
  return all;
}

Ids TaskSession::document(const std::vector<Ids>& items, uint32_t tokens) {
  uint32_t items_tokens = 0;
  for (const Ids& item : items) items_tokens += static_cast<uint32_t>(item.size());
  KVT_CHECK(items_tokens <= tokens);
  // Each filler token falls into one of the gaps before, between and after the items.
  std::vector<uint32_t> gaps(items.size() + 1);
  for (uint32_t i = items_tokens; i < tokens; ++i) ++gaps[below(static_cast<uint32_t>(gaps.size()))];
  Ids out;
  for (size_t i = 0; i < gaps.size(); ++i) {
    for (uint32_t j = 0; j < gaps[i]; ++j) out.push_back(kWordFirst + below(kWords));
    if (i < items.size()) out.insert(out.end(), items[i].begin(), items[i].end());
  }
  return out;
}

SpanSpec TaskSession::spec(v1::Role role, const Ids& ids, bool query, uint32_t tool) const {
  SpanSpec spec{.role = role, .tokens = static_cast<uint32_t>(ids.size()), .tool = tool, .query = query};
  return spec;
}

void TaskSession::fill(const Piece& piece, const Ids& ids) {
  v1::Span& span = session_.span(piece);
  span.mutable_token_ids()->Assign(ids.begin(), ids.end());
  span.set_scope(v1::SCOPE_GLOBAL);
}

void TaskSession::say(v1::Role role, const Ids& ids, bool query) {
  const Piece piece = agent_.say(spec(role, ids, query, 0));
  fill(piece, ids);
  if (role == v1::USER) question_.push_back(piece);
}

void TaskSession::observe(const Ids& ids, uint32_t tool, bool called) {
  if (!called) {
    fill(agent_.say(spec(v1::OBS, ids, false, tool)), ids);
    return;
  }
  agent_.tool(tool, last_request_, spec(v1::OBS, ids, false, tool), kToolNs);
  fill(agent_.history.pieces().back(), ids);
}

void TaskSession::answer(v1::Role role, const Ids& ids, bool scored, uint32_t source_end, uint32_t tool) {
  const uint32_t age = used() - std::min(used(), source_end);
  agent_.think_ns = kThinkNs;
  std::vector<Piece> made;
  const uint32_t node = agent_.request({spec(role, ids, false, tool)}, &made);
  fill(made.front(), ids);
  if (role == v1::TOOL_CALL) last_request_ = made.front();
  if (plan_.drop_turns && role == v1::ASSISTANT) {
    question_.push_back(made.front());
    for (const Piece& piece : question_) agent_.history.remove(piece.index);
  }
  v1::Extra* extra = session_.node(node).add_extras();
  extra->set_key(kTaskExtra);
  extra->set_value_json(
      fmt::format(R"({{"task":"{}","scored":{},"turn":{},"age":{}}})", plan_.task, scored, agent_.turn, age));
}

}  // namespace kvtwin::task
