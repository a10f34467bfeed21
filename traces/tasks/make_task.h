// Tasks: sessions of agents with questions and right answers, for measuring what a policy's retained KV still
// answers (in the manner of RULER, arXiv:2404.06654, table 1, as agents ask).
//
// A session is a canonical trace's: roles, tools, turns, and real token ids (task_tokens.h). The output spans
// of a request are its right output. Decoding is forced unless a scenario says otherwise. Under forced
// decoding an answer is right, token by token, exactly if greedy decoding would have given it: up to the
// first wrong token both have the same inputs. An answer starts with kAssistant, which still sees the whole
// prompt; the symbols after it are sampled from what the policy retained.
//
// Everything is drawn from (split, seed, session), and the splits never share a draw.

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
  uint32_t tokens = 384;   // most tokens of a session, outputs included
  uint32_t questions = 4;  // of a session; those that do not fit are left out
  // A turn's question and answer leave the context when it ends; tool requests and results stay. Later
  // answers cannot come from earlier ones.
  bool drop_turns = false;
};

// Every task, in the order of the help text. "mixed" has sessions of all others in turn, except asked_again,
// which was added later.
std::vector<TaskInfo> tasks();

// Key of an extra of a request's node (Node.extras): {"task":"needle","scored":true,"turn":3, "age":212}.
// Scored: its output is an answer that the task is about (not the request that fetches a document, nor the
// questions that lead to the one that counts). Age: tokens between the end of the text that holds the answer
// and the end of the prompt.
constexpr char kTaskExtra[] = "task";

// Pushes header, sessions and done() into `sink`. An invalid task, split, count or size is an Error that says
// what would be right; errors of the sink are returned.
Result<void> make_task(const TaskOptions& options, TraceSink* sink);

// Writes each session as one row of arrays for a trainer: PREFIX.tokens.npy, uint16 [sessions][tokens], and
// PREFIX.scored.npy, uint8 of the same shape: 0 for prompts, 1 for outputs, 2 for scored answers. Rows are
// padded with kPad. Accepts tasks only, and without drop_turns: sessions whose history grows.
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
