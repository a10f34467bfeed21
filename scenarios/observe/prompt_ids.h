// PromptIds makes the token ids of a trace's prompts, so that a server's prefix cache sees what the trace
// says: prompts with a common prefix get equal ids there, other prompts get other ids.

#ifndef KVTWIN_SCENARIOS_OBSERVE_PROMPT_IDS_H_
#define KVTWIN_SCENARIOS_OBSERVE_PROMPT_IDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "traces/format/sink.h"

namespace kvtwin {

// Ids that every model with a vocabulary of 32,000 tokens or more has, without special tokens.
constexpr uint32_t kObserveFirstId = 1'000;
constexpr uint32_t kObserveIds = 29'000;

class PromptIds {
 public:
  void header(const v1::TraceHeader& header) { block_tokens_ = header.block_tokens(); }
  void shared_spans(const v1::SharedSpanTable& table) { tables_[table.table()] = table; }
  // REQUIRES: the session is valid (traces/format/check.h). `seed` makes the content of one run new to a
  // server that has cached an earlier run's.
  std::vector<uint32_t> of(const v1::Session& session, uint64_t session_index, const v1::LlmRequest& request,
                           uint64_t seed) const;

 private:
  void add_span(const v1::Span& span, uint64_t place, uint32_t tokens, uint64_t seed,
                std::vector<uint32_t>* out) const;

  uint32_t block_tokens_ = 0;
  std::map<uint32_t, v1::SharedSpanTable> tables_;
};

// Text of about as many tokens: common words of one token each, chosen by the ids.
std::string words_of(const std::vector<uint32_t>& ids);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OBSERVE_PROMPT_IDS_H_
