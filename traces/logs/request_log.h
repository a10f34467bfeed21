// RequestLog is what a client, a proxy or a server recorded about requests to an OpenAI-compatible API. Every
// tool's file is read into it, and one function makes a trace of it, so that all tools follow the same rules:
//
//   Sessions   by the log's own session, conversation or trace id. Without one: requests whose messages
//   extend
//              the messages of an earlier request continue its session. Without text: one request a session.
//   Waits      a request waits for the requests of its session that ended before it began and that nothing
//              else waited for. Its think time is the rest of the gap. Requests that overlap run in parallel.
//   Identity   from text: a chained hash of messages, comparable in the whole file; the text is not stored.
//              Without text: a prompt that is at least as long as the previous one of its session continues
//              it (ESTIMATED).
//   Lengths    as recorded. Without them: 4 characters a token (ESTIMATED).
//
// Notes say which of these applied. Failed requests are left out and counted.

#ifndef KVTWIN_TRACES_LOGS_REQUEST_LOG_H_
#define KVTWIN_TRACES_LOGS_REQUEST_LOG_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/importers/formats.h"

namespace kvtwin {

struct TextHash {
  uint64_t low = 0, high = 0;
  friend auto operator<=>(const TextHash&, const TextHash&) = default;
};

TextHash hash_text(std::string_view text);
// The hash of everything up to and including `text`, which follows `before`.
TextHash chain_text(const TextHash& before, const TextHash& text);

// A message of a prompt, or an answer. Its text is not kept.
struct LoggedText {
  TextHash hash;
  uint32_t chars = 0;
  v1::Role role = v1::ROLE_UNKNOWN;
};

struct LoggedRequest {
  std::string where;                // its place in the source, for messages
  std::string session;              // "": not recorded
  std::string model;                // "": not recorded
  std::optional<int64_t> start_ns;  // all times of a log are of one clock
  std::optional<int64_t> first_token_ns;
  std::optional<int64_t> end_ns;
  std::optional<uint64_t> prompt_tokens, output_tokens, cached_tokens;
  std::vector<LoggedText> prompt;  // empty: no text was recorded
  std::optional<LoggedText> output;
  bool failed = false;
  std::string unread_time;  // a start that is recorded, but is no time; "": none
};

struct RequestLog {
  std::string format;         // its name in the table of formats
  std::string url;            // of the tool that writes it
  std::string session_field;  // where `session` comes from, for notes
  std::string tokens_hint;    // how to make the tool record lengths
  double time_resolution_ns = 1e3;
  std::vector<LoggedRequest> requests;
};

// Error: a request has no start although others have one, no length and no text, or impossible times.
Result<void> write_request_log(RequestLog log, const std::string& path, const ImportOptions& options,
                               TraceSink* sink);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_LOGS_REQUEST_LOG_H_
