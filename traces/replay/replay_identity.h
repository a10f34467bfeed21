// IdentityStore determines which positions of which requests hold the same tokens
// (docs/design/trace-formats.md#identity).
//
// A prompt is identified by its block ids (prompt_key), else span by span: by token ids, else by content hash
// within its scope, else by the position of the span in Session.spans.
//
// *Block ids* that are chained become unit numbers directly: id x (block / unit) + k. A hashed last block
// that is not full gets a scope of its own: it equals only the tail of an equal key.
//
// *Everything else* is chained here: unit i is numbered by (number of unit i-1, its content), so that equal
// numbers mean equal prefixes and vice versa. Contents are compared by 128-bit hashes. Runs inside one span
// are numbered at once, so the cost grows with spans and token ids, not with tokens.
//
// *Output* (and a floor tail) is what the first later request of the session whose key extends this one
// contains there, unless output spans tell. At most kLookahead later requests are examined. No key extends an
// empty key.

#ifndef KVTWIN_TRACES_REPLAY_REPLAY_IDENTITY_H_
#define KVTWIN_TRACES_REPLAY_REPLAY_IDENTITY_H_

#include <cstdint>
#include <map>
#include <vector>

#include "engine/base/result.h"
#include "traces/proto/agent_trace.pb.h"
#include "traces/replay/replay_table.h"

namespace kvtwin {

constexpr uint32_t kLookahead = 1024;

// Two independent chains of mix64. Not safe against adversaries: a crafted trace may collide with itself.
struct Hash128 {
  uint64_t low = 0x9e3779b97f4a7c15u;
  uint64_t high = 0xc2b2ae3d27d4eb4fu;
  void add(uint64_t word);
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

struct KeyRun {
  int64_t first = 0;
  uint32_t count = 0;
  v1::Scope scope{};
};

struct SpanRef {
  uint32_t table = 0;  // 0: Session.spans
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t keep = 0;
};

struct SpanInfo {
  Hash128 key;  // of the whole content, or of the scope if the token ids are known
  uint32_t tokens = 0;
  uint64_t literal = 0;     // 1 + index of its token ids in the pool; 0: none
  bool everywhere = false;  // the same for every session and replica
};

// The identity of a request as it was read, before unit_tokens is known.
struct RequestIdentity {
  uint32_t node = 0;  // in ReplayTable::nodes
  uint32_t key_first = 0, key_count = 0;
  uint32_t prompt_first = 0, prompt_count = 0;  // SpanRefs
  uint32_t output_first = 0, output_count = 0;
};

struct SessionIdentity {
  uint32_t span_first = 0, span_count = 0;
  uint32_t request_first = 0, request_count = 0;
};

class IdentityStore {
 public:
  void header(const v1::TraceHeader& header);
  Result<void> shared_spans(const v1::SharedSpanTable& table);
  void begin_session(const v1::Session& session);
  // `where` names the request in errors. `prompt`: tokens of the prompt.
  Result<void> request(const v1::Session& session, const v1::LlmRequest& request, uint32_t node,
                       uint32_t prompt, const std::string& where);

  uint32_t unit_tokens(uint32_t page_tokens) const;
  // Writes the runs of every request into *table. REQUIRES: table->unit_tokens is set.
  Result<void> resolve(ReplayTable* table) const;

 private:
  friend class SessionResolver;

  Result<void> add_key(const v1::BlockKey& key, uint32_t prompt, const std::string& where);
  Result<void> add_refs(const google::protobuf::RepeatedPtrField<v1::SpanRun>& runs, uint32_t session_spans,
                        const std::string& where);
  SpanInfo span_info(const v1::Span& span, uint64_t table, uint64_t session, uint64_t index);

  uint32_t block_tokens_ = 0;
  bool chained_ = false;
  bool tail_hashed_ = false;
  uint64_t spans_listed_ = 0;
  uint64_t spans_listed_session_ = 0;
  std::vector<KeyRun> keys_;
  std::vector<SpanRef> refs_;
  std::vector<SpanInfo> spans_;
  std::vector<uint32_t> pool_;  // token ids
  std::map<uint32_t, std::vector<SpanInfo>> tables_;
  std::vector<RequestIdentity> requests_;
  std::vector<SessionIdentity> sessions_;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_REPLAY_IDENTITY_H_
