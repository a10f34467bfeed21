// Answers watches what requests of tasks sample, and says which answers are right.
//
// Decoding is forced, so that token i of an answer is sampled behind the right tokens before it: an answer
// all of whose tokens are right is what greedy decoding gives, and one that is not, is not
// (traces/tasks/make_task.h). The loss is the cross entropy of the right tokens in nats, that of an answer's
// first token apart: it is sampled by the prompt's last row, which no policy that works at the prompt's end
// has touched yet.

#ifndef KVTWIN_SCENARIOS_EVALUATE_ANSWERS_H_
#define KVTWIN_SCENARIOS_EVALUATE_ANSWERS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scenarios/app/compose.h"
#include "traces/format/sink.h"

namespace kvtwin {

// What the nodes of a trace of tasks are. Errors: a trace that says nothing of tasks.
class TaskKey final : public TraceSink {
 public:
  Result<void> header(const v1::TraceHeader&) override { return {}; }
  Result<void> shared_spans(const v1::SharedSpanTable&) override { return {}; }
  Result<void> session(const v1::Session& session) override;

  // By session and node of the file: requests whose output is an answer that counts.
  bool scored(uint32_t session, uint32_t node) const { return scored_.contains({session, node}); }
  uint64_t questions() const { return scored_.size(); }
  uint64_t sessions() const { return sessions_; }
  double prompt_mean() const;  // tokens, of the requests that count

 private:
  uint32_t sessions_ = 0;
  uint64_t prompt_tokens_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> scored_;  // prompt tokens
};

struct AnswerTotals {
  uint64_t questions = 0;  // of the trace
  uint64_t answered = 0;   // requests that ended: others count as wrong
  uint64_t right = 0;
  uint64_t right_permuted = 0;  // by the answer of the next call that has as many tokens: chance
  uint64_t tokens = 0;          // of answers, first ones apart
  double loss = 0;              // mean over them
};

class Answers final : public SampleWatcher {
 public:
  // Both must outlive this. REQUIRES: composed->tokens.
  Answers(const Composed* composed, const TaskKey* key) : composed_(*composed), key_(*key) {}

  void sampled(RequestId request, uint32_t position, uint32_t token, std::span<const float> logits) override;
  AnswerTotals totals() const;

 private:
  struct Answer {
    std::vector<uint32_t> right, said;
    std::vector<double> loss;
  };
  const Composed& composed_;
  const TaskKey& key_;
  std::map<std::pair<uint32_t, uint32_t>, Answer> answers_;  // by session, node
};

// 95 % interval of a fraction of `asked` of which `right` were right (Wilson 1927). REQUIRES: right <= asked.
struct Interval {
  double low = 0, high = 1;
};
Interval wilson(uint64_t right, uint64_t asked);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_ANSWERS_H_
