// Answers observes the samples of task requests and counts correct answers.
//
// Decoding is forced: token i of an answer is sampled after the correct tokens before it. So an answer whose
// tokens are all correct is exactly one that greedy decoding would give (traces/tasks/make_task.h). The loss
// is the cross entropy of the correct tokens in nats, without an answer's first token: the prompt's last
// token produces it, before any policy that compresses at the end of the prompt takes effect.

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

// The scored nodes of a task trace. Errors: a trace without tasks.
class TaskKey final : public TraceSink {
 public:
  Result<void> header(const v1::TraceHeader&) override { return {}; }
  Result<void> shared_spans(const v1::SharedSpanTable&) override { return {}; }
  Result<void> session(const v1::Session& session) override;

  // By session and node of the file: true for requests whose output is a scored answer.
  bool scored(uint32_t session, uint32_t node) const { return scored_.contains({session, node}); }
  // Prompt tokens of the scored requests, by (session, node).
  const std::map<std::pair<uint32_t, uint32_t>, uint32_t>& requests() const { return scored_; }
  uint64_t questions() const { return scored_.size(); }
  uint64_t sessions() const { return sessions_; }
  double prompt_mean() const;  // tokens, over the scored requests

 private:
  uint32_t sessions_ = 0;
  uint64_t prompt_tokens_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> scored_;  // prompt tokens
};

struct AnswerTotals {
  uint64_t questions = 0;  // of the trace
  uint64_t answered = 0;   // requests that ended; others count as incorrect
  uint64_t right = 0;
  uint64_t right_permuted = 0;  // compared with the answer of the next request of equal length: chance level
  uint64_t tokens = 0;          // tokens of answers, without first ones
  double loss = 0;              // mean over these tokens
  std::string marks{};          // by question in the order of the trace: '1' if it is correct, else '0'
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

// 95 % interval of the fraction `right` / `asked` (Wilson 1927). REQUIRES: right <= asked.
struct Interval {
  double low = 0, high = 1;
};
Interval wilson(uint64_t right, uint64_t asked);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_ANSWERS_H_
