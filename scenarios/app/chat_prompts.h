// ChatPrompts provides the token ids of a trace's requests in a chat template (replay.chat_template): the
// trace's own, where it has ids of the model's vocabulary, else ids that are rendered from the roles and
// lengths of its spans (engine/chat/chat_renderer.h).
//
// Spans without a role, and tokens of a prompt beyond its spans, are texts of the user.

#ifndef KVTWIN_SCENARIOS_APP_CHAT_PROMPTS_H_
#define KVTWIN_SCENARIOS_APP_CHAT_PROMPTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/chat_renderer.h"
#include "traces/format/sink.h"
#include "traces/format/trace_tokens.h"

namespace kvtwin {

class ChatPrompts final : public TraceSink {
 public:
  // `own` holds the trace's ids and is given each record before this. All must outlive this.
  ChatPrompts(const ChatTemplate& chat, uint32_t vocab, const TraceTokens* own)
      : chat_(chat), vocab_(vocab), own_(*own) {}

  Result<void> header(const v1::TraceHeader&) override { return {}; }
  Result<void> shared_spans(const v1::SharedSpanTable& table) override;
  // Fails if the vocabulary or the template has no token for an image.
  Result<void> session(const v1::Session& session) override;

  // Prompt, then output, of node `node` of session `session` of the file. REQUIRES: it is a request.
  std::vector<uint32_t> request(uint32_t session, uint32_t node) const;
  std::vector<uint32_t> prompt(uint32_t session, uint32_t node) const;

  // Why the template does not fit the trace; nullopt: it does.
  std::optional<std::string> misfit() const;
  // Of the prompts' tokens: without a role in the trace, and of another role than the message that they
  // continue (ChatRenderer::append).
  uint64_t unknown_tokens() const { return unknown_tokens_; }
  uint64_t unmarked_tokens() const { return unmarked_tokens_; }

 private:
  struct Span {
    MessageSpan message;
    bool unknown = false;  // has no role
  };
  struct Request {
    std::vector<v1::SpanRun> prompt, output;
    uint32_t prompt_tokens = 0;
    uint32_t turn = 0;
  };
  struct Session {
    std::vector<Span> spans;
    std::map<uint32_t, Request> requests;  // by node
  };
  struct Rendered {
    std::vector<uint32_t> ids;
    uint64_t unknown_tokens = 0, unmarked_tokens = 0;  // of the ids
  };
  Result<void> check_image(const std::string& where) const;
  Result<std::vector<Span>> keep(const google::protobuf::RepeatedPtrField<v1::Span>& spans,
                                 const std::string& where);
  // The ids of `runs` follow those in *out.
  void render(const Session& session, const std::vector<v1::SpanRun>& runs, ChatRenderer* renderer,
              Rendered* out) const;
  Rendered render_prompt(const Session& session, const Request& request, ChatRenderer* renderer) const;

  const ChatTemplate& chat_;
  const uint32_t vocab_;
  const TraceTokens& own_;
  std::map<uint32_t, std::vector<Span>> tables_;
  std::vector<Session> sessions_;
  bool message_seen_ = false;  // in the trace's own ids
  uint64_t rendered_tokens_ = 0, unknown_tokens_ = 0, unmarked_tokens_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_CHAT_PROMPTS_H_
