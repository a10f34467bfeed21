// TraceTokens holds the token ids of a trace, request by request, for a model with that vocabulary.
//
// It holds ids only of traces whose tokenizer has the model's vocabulary. A request with any span without ids
// has none; its tokens are made from identities, like those of other traces (engine/common/token_ids.h).

#ifndef KVTWIN_TRACES_FORMAT_TRACE_TOKENS_H_
#define KVTWIN_TRACES_FORMAT_TRACE_TOKENS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "traces/format/sink.h"

namespace kvtwin {

class TraceTokens final : public TraceSink {
 public:
  // `vocab`: number of token ids of the model.
  explicit TraceTokens(uint32_t vocab) : vocab_(vocab) {}

  Result<void> header(const v1::TraceHeader& header) override;
  Result<void> shared_spans(const v1::SharedSpanTable& table) override;
  // Fails if an id is not in the vocabulary.
  Result<void> session(const v1::Session& session) override;

  bool any() const { return requests_ > 0; }
  // Prompt, then output, of node `node` of session `session` of the file; empty if the trace has no ids for
  // it.
  std::vector<uint32_t> request(uint32_t session, uint32_t node) const;

 private:
  struct Spans {
    std::vector<uint32_t> ids;
    std::vector<size_t> begins;  // of each span, and the end
    std::vector<bool> known;
  };
  struct Session {
    Spans session_spans;
    std::map<uint32_t, std::vector<v1::SpanRun>> requests;  // by node
  };
  Result<Spans> keep(const google::protobuf::RepeatedPtrField<v1::Span>& spans,
                     const std::string& where) const;
  bool append(const Session& session, const v1::SpanRun& run, std::vector<uint32_t>* out) const;

  const uint32_t vocab_;
  bool wanted_ = false;
  uint64_t requests_ = 0;  // with ids, or at least spans
  std::vector<Session> sessions_;
  std::map<uint32_t, Spans> tables_;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_TRACE_TOKENS_H_
