#include "scenarios/evaluate/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "traces/tasks/make_task.h"

namespace kvtwin {

Result<void> TaskKey::session(const v1::Session& session) {
  bool any = false;
  for (int i = 0; i < session.nodes_size(); ++i) {
    const v1::Node& node = session.nodes(i);
    for (const v1::Extra& extra : node.extras()) {
      if (extra.key() != kTaskExtra || !node.has_llm()) continue;
      any = true;
      if (extra.value_json().find("\"scored\":true") == std::string::npos) continue;
      scored_[{sessions_, static_cast<uint32_t>(i)}] = node.llm().prompt_tokens();
      prompt_tokens_ += node.llm().prompt_tokens();
    }
  }
  if (!any)
    return make_error(fmt::format("session \"{}\"", session.id()), "has no task",
                      "a trace of kvtwin trace make-task");
  ++sessions_;
  return {};
}

double TaskKey::prompt_mean() const {
  return scored_.empty() ? 0 : static_cast<double>(prompt_tokens_) / static_cast<double>(scored_.size());
}

void Answers::sampled(RequestId request, uint32_t position, uint32_t token, std::span<const float> logits) {
  const ReplayRequestInfo info = composed_.client->request_info(request);
  const std::pair<uint32_t, uint32_t> at{info.session_index, info.node};
  if (!key_.scored(at.first, at.second) || position < info.prompt_tokens) return;
  Answer& answer = answers_[at];
  if (answer.right.empty()) {
    const std::vector<uint32_t> all = composed_.tokens->request(at.first, at.second);
    answer.right.assign(all.begin() + info.prompt_tokens, all.end());
    answer.said.assign(answer.right.size(), UINT32_MAX);
    answer.loss.assign(answer.right.size(), 0);
  }
  const uint32_t i = position - info.prompt_tokens;
  if (i >= answer.right.size()) return;  // a token after the answer
  // A preempted request samples again; the last sample counts.
  answer.said[i] = token;
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  answer.loss[i] = top + std::log(sum) - static_cast<double>(logits[answer.right[i]]);
}

AnswerTotals Answers::totals() const {
  AnswerTotals out;
  out.questions = key_.questions();
  double loss = 0;
  std::vector<const Answer*> all;
  for (const auto& [at, answer] : answers_) {
    if (answer.said.back() == UINT32_MAX) continue;
    all.push_back(&answer);
    out.right += answer.said == answer.right;
    out.tokens += answer.right.size() - 1;
    for (size_t i = 1; i < answer.loss.size(); ++i) loss += answer.loss[i];
  }
  for (const auto& [at, tokens] : key_.requests()) {
    const auto answer = answers_.find(at);
    out.marks += answer != answers_.end() && answer->second.said == answer->second.right ? '1' : '0';
  }
  out.answered = all.size();
  out.loss = out.tokens > 0 ? loss / static_cast<double>(out.tokens) : 0;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t step = 1; step < all.size(); ++step) {
      const Answer& other = *all[(i + step) % all.size()];
      if (other.right.size() != all[i]->right.size()) continue;
      out.right_permuted += all[i]->said == other.right;
      break;
    }
  }
  return out;
}

Interval wilson(uint64_t right, uint64_t asked) {
  if (asked == 0) return {};
  constexpr double kZ = 1.959963984540054;
  const double n = static_cast<double>(asked), p = static_cast<double>(right) / n;
  const double middle = (p + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / (1 + kZ * kZ / n);
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

}  // namespace kvtwin
