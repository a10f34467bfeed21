// Tasks: sessions of agents with questions and the answers that are right, for measuring what a policy's
// kept KV still knows (issue F; in the manner of RULER, arXiv:2404.06654, table 1, as agents pose them).
//
// A session is a canonical trace's: roles, tools, turns, and real token ids (task_tokens.h). What a request
// should say is its output spans; decoding is forced unless a scenario says otherwise, and under forced
// decoding an answer is right, token by token, exactly if greedy decoding would have given it: up to the
// first wrong token both have the same inputs. An answer opens with kAssistant, which the whole prompt still
// sees: the symbols behind it are sampled from what the policy left.
//
// Everything is drawn from (split, seed, session): the splits never share a draw.

#ifndef KVTWIN_TRACES_TASKS_MAKE_TASK_H_
#define KVTWIN_TRACES_TASKS_MAKE_TASK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "traces/format/sink.h"

namespace kvtwin {

struct TaskInfo {
  std::string name;
  std::string description;
};

struct TaskOptions {
  std::string task;
  std::string split = "test";  // train, test
  uint64_t sessions = 0;
  uint64_t seed = 0;
  uint32_t tokens = 384;   // of a session, outputs included: at most
  uint32_t questions = 4;  // of a session; what does not fit is left out
};

// Every task, in the order in which help lists them. "mixed" has sessions of all others in turn, but for
// asked_again, that came later.
std::vector<TaskInfo> tasks();

// The key under which a request's node says what it is (Node.extras):
// {"task":"needle","scored":true,"turn":3, "age":212}. Scored: its output is an answer that the task is about
// (not the request that fetches a document, not the questions that lead to the one that matters). Age: tokens
// between the end of what holds the answer and the prompt's end.
constexpr char kTaskExtra[] = "task";

// Pushes header, sessions and done() into `sink`. A wrong task, split, count or size is an Error that says
// what would be right; so is whatever the sink returns.
Result<void> make_task(const TaskOptions& options, TraceSink* sink);

// Writes each session as one row of arrays, for a trainer: PREFIX.tokens.npy, uint16 [sessions][tokens], and
// PREFIX.scored.npy, uint8, likewise: 0 what a prompt says, 1 what a request should say, 2 what an answer
// should say. Rows are filled up with kPad. Takes tasks only: sessions whose history grows.
class TaskArrays final : public TraceSink {
 public:
  TaskArrays(std::string prefix, uint32_t tokens) : prefix_(std::move(prefix)), tokens_(tokens) {}

  Result<void> header(const v1::TraceHeader& header) override;
  Result<void> shared_spans(const v1::SharedSpanTable& table) override;
  Result<void> session(const v1::Session& session) override;
  Result<void> done() override;

 private:
  const std::string prefix_;
  const uint32_t tokens_;
  uint64_t rows_ = 0;
  std::string ids_, marks_;  // bytes of the arrays
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_TASKS_MAKE_TASK_H_
