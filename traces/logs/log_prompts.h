// LogPrompts builds the spans of one session's prompts: from hashed messages, or from lengths alone.

#ifndef KVTWIN_TRACES_LOGS_LOG_PROMPTS_H_
#define KVTWIN_TRACES_LOGS_LOG_PROMPTS_H_

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "traces/format/session_builder.h"
#include "traces/logs/log_session.h"

namespace kvtwin {

class LogPrompts {
 public:
  LogPrompts(SessionBuilder* session, PrefixTokens* prefixes) : session_(*session), prefixes_(*prefixes) {}

  // Adds the request as the next node of the session. `data` receives the node whose prompt and output this
  // prompt continues, if any.
  uint32_t add(const TimedRequest& request, std::optional<uint32_t>* data);

 private:
  struct Thread {  // a prompt that a later one may continue
    uint32_t node = 0;
    int64_t end_ns = 0;
    TextHash prompt_hash;   // of all messages
    History prompt, whole;  // without and with the output
  };

  History prompt_of_texts(const TimedRequest& request, TextHash* hash);
  History prompt_of_lengths(const TimedRequest& request, std::optional<uint32_t>* data);
  std::optional<uint32_t> continued(const TimedRequest& request) const;
  Piece text_span(const LoggedText& text, const TextHash& hash, uint32_t tokens);
  Piece plain_span(uint32_t tokens, v1::Role role);
  std::vector<Piece> output_of(const TimedRequest& request, const TextHash& prompt);

  SessionBuilder& session_;
  PrefixTokens& prefixes_;
  std::map<std::pair<TextHash, uint32_t>, Piece> spans_;  // by content up to it, and tokens
  std::vector<Thread> threads_;
  std::map<TextHash, size_t> thread_of_;  // the latest thread with these messages
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_LOGS_LOG_PROMPTS_H_
