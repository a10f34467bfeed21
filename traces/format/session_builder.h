// SessionBuilder makes one well-formed v1::Session from the events that an importer or synthesiser reports:
// spans, run-length coded prompts, token sums and block keys follow from them.
//
// Units: tokens, nanoseconds. Callers pass numbers that they have checked: a dependency that points forwards
// or a span without tokens is a bug of ours and stops the program (KVT_CHECK). Schema and rules:
// traces/proto/agent_trace.proto.

#ifndef KVTWIN_TRACES_FORMAT_SESSION_BUILDER_H_
#define KVTWIN_TRACES_FORMAT_SESSION_BUILDER_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "traces/format/block_key.h"
#include "traces/proto/agent_trace.pb.h"

namespace kvtwin {

// A span in a prompt: its first `kept` tokens of `tokens`. Table 0 is Session.spans.
struct Piece {
  uint32_t table = 0;
  uint32_t index = 0;
  uint32_t tokens = 0;
  uint32_t kept = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// What the next prompt of an agent would contain, in order.
class History {
 public:
  void add(const Piece& piece);
  void add(const std::vector<Piece>& pieces);
  // Retains the first `tokens` tokens; the span in which they end is retained in part.
  void cut(uint64_t tokens);
  // Removes all pieces of span `index` of the session: stripped reasoning, a screenshot that is too old.
  void remove(uint32_t index);
  uint64_t tokens() const { return tokens_; }
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::vector<Piece> pieces_;
  uint64_t tokens_ = 0;
};

struct SpanSpec {
  v1::Role role = v1::ROLE_UNKNOWN;
  uint32_t tokens = 0;
  uint32_t turn = 0;
  uint32_t tool = 0;  // 1 + index in header.tool_names
  uint32_t chars = 0;
  v1::Modality modality = v1::TEXT;
  bool query = false;
};

class SessionBuilder {
 public:
  // key_block_tokens > 0: every request gets a prompt_key of that block size (floor), with ids in the order
  // in which blocks first appear. Ids are chained: equal ids mean equal whole prefixes. Blocks that lie
  // entirely in leading pieces of shared tables get ids of SCOPE_DATASET, all others of SCOPE_SESSION. 0: the
  // identity is the position in Session.spans.
  SessionBuilder(std::string id, std::string workload, uint32_t key_block_tokens);

  uint32_t add_agent(const std::string& name, const std::string& kind, uint32_t parent, uint32_t model = 0);
  Piece add_span(const SpanSpec& spec);

  // The node's prompt is the present `prompt`; prompt_tokens and output_tokens are the sums.
  uint32_t add_llm(uint32_t agent, const History& prompt, const std::vector<Piece>& output);
  uint32_t add_tool(uint32_t agent, const v1::ToolCall& tool);
  uint32_t add_opaque(uint32_t agent, const v1::OpaqueAgent& opaque);
  void depend(uint32_t node, uint32_t on, v1::DepKind kind, int64_t delay_ns = 0,
              uint32_t at_output_token = 0);

  uint32_t nodes() const { return static_cast<uint32_t>(session_.nodes_size()); }
  v1::Node& node(uint32_t index) { return *session_.mutable_nodes(static_cast<int>(index)); }
  v1::LlmRequest& llm(uint32_t index) { return *node(index).mutable_llm(); }
  v1::Span& span(const Piece& piece) { return *session_.mutable_spans(static_cast<int>(piece.index)); }
  v1::Session& session() { return session_; }
  // Marks one field of one message whose provenance differs from the header's policy.
  template <typename Message>
  static void mark(Message* message, uint32_t field, v1::Prov prov, uint32_t recipe = 0) {
    v1::ProvOverride* over = message->add_prov();
    over->set_field(field);
    over->set_prov(prov);
    over->set_recipe(recipe);
  }

  // Returns the finished session. The builder is empty afterwards.
  v1::Session take();

 private:
  uint32_t add_node(uint32_t agent);
  v1::BlockKey key_of(const std::vector<Piece>& pieces);

  // State of the walk over a prompt after a piece. Prompts mostly extend the previous one, so the next walk
  // starts at the last state that both have in common and not at the first token.
  struct KeyState {
    uint64_t content = 0;       // chained content up to here
    uint64_t shared_begun = 0;  // pieces of shared tables that have begun, while there was nothing else
    bool all_shared = true;
    uint32_t filled = 0;  // tokens in the current block
    int64_t block = 0;    // number of the current block
    size_t runs = 0;      // ids so far: that many runs, of which the last has ...
    uint32_t last_count = 0;
  };
  void walk(const Piece& piece, KeyState* state);

  v1::Session session_;
  uint32_t key_block_tokens_;
  std::unordered_map<uint64_t, int64_t> block_ids_;  // content of a prefix that ends with the block -> id
  IdRuns key_runs_;                                  // of the last walk, ...
  std::vector<Piece> key_pieces_;                    // ... its pieces, and the state after each
  std::vector<KeyState> key_states_;
};

// AgentThread holds the history of one agent's conversation and what its next request waits for.
class AgentThread {
 public:
  AgentThread(SessionBuilder* session, uint32_t agent) : session_(session), agent_(agent) {}

  History history;
  uint32_t turn = 0;
  int64_t think_ns = 0;  // before the next request; request() resets it

  // Adds a span to the history only.
  Piece say(SpanSpec spec);
  // Adds a request with these spans as its output. They join the history; the next request depends on it.
  uint32_t request(std::vector<SpanSpec> output, std::vector<Piece>* made = nullptr);
  // Adds a tool run that the last request asked for in `call_span`, started when its token at_output_token
  // exists (0: when it is complete). The result is a new OBS span that joins the history. A call_span or a
  // result without tokens is left out.
  uint32_t tool(uint32_t tool, const Piece& call_span, SpanSpec result, int64_t duration_ns,
                uint32_t at_output_token = 0);
  // The next request also waits for `node`.
  void wait_for(uint32_t node, v1::DepKind kind, int64_t delay_ns = 0, uint32_t at_output_token = 0);

  uint32_t agent() const { return agent_; }
  uint32_t last_request() const { return last_request_; }

 private:
  SessionBuilder* session_;
  uint32_t agent_;
  uint32_t last_request_ = 0;
  std::vector<v1::Dep> waits_;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_SESSION_BUILDER_H_
