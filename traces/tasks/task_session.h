// TaskSession writes one session of a task, prompts and right outputs, with all token ids.

#ifndef KVTWIN_TRACES_TASKS_TASK_SESSION_H_
#define KVTWIN_TRACES_TASKS_TASK_SESSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/prng.h"
#include "traces/format/session_builder.h"
#include "traces/tasks/task_tokens.h"

namespace kvtwin::task {

using Ids = std::vector<uint32_t>;

struct TaskPlan {
  std::string task;
  uint64_t seed = 0;  // seed of the split
  uint32_t tokens = 0, questions = 0;
  bool drop_turns = false;  // TaskOptions::drop_turns
};

class TaskSession {
 public:
  TaskSession(const TaskPlan& plan, uint64_t index);

  // Draws of this session, in order.
  uint32_t below(uint32_t count) { return static_cast<uint32_t>(draws_.range(0, count - 1)); }
  // `count` different symbols of a kind, in drawn order; all of them if there are fewer.
  Ids some(uint32_t first, uint32_t kinds, uint32_t count);
  Ids value() { return {kValueFirst + below(kValues), kValueFirst + below(kValues)}; }
  // `tokens` tokens: the items in order, with filler between them at drawn positions. REQUIRES: they fit.
  Ids document(const std::vector<Ids>& items, uint32_t tokens);

  uint32_t used() const { return static_cast<uint32_t>(agent_.history.tokens()); }
  uint32_t left() const { return used() < plan_.tokens ? plan_.tokens - used() : 0; }
  const TaskPlan& plan() const { return plan_; }

  void next_turn() {
    ++agent_.turn;
    question_.clear();
  }
  void say(v1::Role role, const Ids& ids, bool query = false);
  // A tool result; `called`: the last request asked for it.
  void observe(const Ids& ids, uint32_t tool, bool called);
  // An output of the model: `ids` is right. `source_end`: where the text that it needs ends, in tokens of the
  // session.
  void answer(v1::Role role, const Ids& ids, bool scored, uint32_t source_end, uint32_t tool = 0);

  v1::Session take() { return session_.take(); }

 private:
  SpanSpec spec(v1::Role role, const Ids& ids, bool query, uint32_t tool) const;
  void fill(const Piece& piece, const Ids& ids);

  const TaskPlan& plan_;
  Prng draws_;
  SessionBuilder session_;
  AgentThread agent_;
  Piece last_request_{};         // the span of the last tool request
  std::vector<Piece> question_;  // the user's spans of this turn
};

// One session; task_kinds.cc has the shape of each task. REQUIRES: the task exists, and the plan's tokens are
// at least kTaskTokensMin.
constexpr uint32_t kTaskTokensMin = 96;
v1::Session make_session(const TaskPlan& plan, uint64_t index);
// Every task but "mixed".
struct NamedTask {
  const char* name;
  const char* description;
  void (*write)(TaskSession* session);
  bool trained = true;  // part of "mixed": the shipped models were trained on it
};
const std::vector<NamedTask>& named_tasks();

}  // namespace kvtwin::task

#endif  // KVTWIN_TRACES_TASKS_TASK_SESSION_H_
