#include "traces/format/session_builder.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "traces/format/block_key.h"

namespace kvtwin {
namespace {

constexpr int kSharedBlockBits = 20;  // a shared prefix has fewer than 2^20 blocks

// Runs over adjacent spans. A span that is retained in part ends its run.
template <typename Runs>
void write_runs(const std::vector<Piece>& pieces, Runs* runs) {
  v1::SpanRun* run = nullptr;
  for (const Piece& piece : pieces) {
    const bool joins = run != nullptr && run->table() == piece.table && run->keep_tokens() == 0 &&
                       run->first() + run->count() == piece.index;
    if (!joins) {
      run = runs->Add();
      run->set_first(piece.index);
      run->set_table(piece.table);
    }
    run->set_count(run->count() + 1);
    if (piece.kept < piece.tokens) run->set_keep_tokens(piece.kept);
  }
}

uint64_t chain(uint64_t state, const Piece& piece, uint32_t from, uint32_t to) {
  return draw({state, (uint64_t{piece.table} << 32) | piece.index, (uint64_t{from} << 32) | to});
}

}  // namespace

void History::add(const Piece& piece) {
  KVT_CHECK(piece.kept > 0 && piece.kept <= piece.tokens);
  pieces_.push_back(piece);
  tokens_ += piece.kept;
}

void History::add(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) add(piece);
}

void History::cut(uint64_t tokens) {
  while (tokens_ > tokens) {
    Piece& last = pieces_.back();
    const uint64_t before = tokens_ - last.kept;
    if (before < tokens) {
      last.kept = static_cast<uint32_t>(tokens - before);
      tokens_ = tokens;
    } else {
      tokens_ = before;
      pieces_.pop_back();
    }
  }
}

void History::remove(uint32_t index) {
  std::erase_if(pieces_, [&](const Piece& piece) {
    const bool dropped = piece.table == 0 && piece.index == index;
    if (dropped) tokens_ -= piece.kept;
    return dropped;
  });
}

SessionBuilder::SessionBuilder(std::string id, std::string workload, uint32_t key_block_tokens)
    : key_block_tokens_(key_block_tokens) {
  session_.set_id(std::move(id));
  session_.set_workload(std::move(workload));
}

uint32_t SessionBuilder::add_agent(const std::string& name, const std::string& kind, uint32_t parent,
                                   uint32_t model) {
  const auto index = static_cast<uint32_t>(session_.agents_size());
  KVT_CHECK(parent <= index);
  v1::Agent* agent = session_.add_agents();
  agent->set_name(name);
  agent->set_kind(kind);
  agent->set_parent(parent);
  agent->set_model(model);
  return index;
}

Piece SessionBuilder::add_span(const SpanSpec& spec) {
  KVT_CHECK(spec.tokens > 0);
  const auto index = static_cast<uint32_t>(session_.spans_size());
  v1::Span* span = session_.add_spans();
  span->set_role(spec.role);
  span->set_tokens(spec.tokens);
  span->set_turn(spec.turn);
  span->set_tool(spec.tool);
  span->set_chars(spec.chars);
  span->set_modality(spec.modality);
  span->set_query_span(spec.query);
  return {.table = 0, .index = index, .tokens = spec.tokens, .kept = spec.tokens};
}

uint32_t SessionBuilder::add_node(uint32_t agent) {
  KVT_CHECK(agent < static_cast<uint32_t>(session_.agents_size()));
  session_.add_nodes()->set_agent(agent);
  return nodes() - 1;
}

uint32_t SessionBuilder::add_llm(uint32_t agent, const History& prompt, const std::vector<Piece>& output) {
  KVT_CHECK(prompt.tokens() > 0 && prompt.tokens() <= UINT32_MAX);
  const uint32_t index = add_node(agent);
  v1::LlmRequest& request = llm(index);
  request.set_model(session_.agents(static_cast<int>(agent)).model());
  write_runs(prompt.pieces(), request.mutable_prompt());
  write_runs(output, request.mutable_output());
  request.set_prompt_tokens(static_cast<uint32_t>(prompt.tokens()));
  uint64_t output_tokens = 0;
  for (const Piece& piece : output) output_tokens += piece.kept;
  KVT_CHECK(output_tokens <= UINT32_MAX);
  request.set_output_tokens(static_cast<uint32_t>(output_tokens));
  if (key_block_tokens_ > 0) *request.mutable_prompt_key() = key_of(prompt.pieces());
  return index;
}

uint32_t SessionBuilder::add_tool(uint32_t agent, const v1::ToolCall& tool) {
  const uint32_t index = add_node(agent);
  *node(index).mutable_tool() = tool;
  return index;
}

uint32_t SessionBuilder::add_opaque(uint32_t agent, const v1::OpaqueAgent& opaque) {
  const uint32_t index = add_node(agent);
  *node(index).mutable_opaque() = opaque;
  return index;
}

void SessionBuilder::depend(uint32_t on_behalf, uint32_t on, v1::DepKind kind, int64_t delay_ns,
                            uint32_t at_output_token) {
  KVT_CHECK(on < on_behalf && on_behalf < nodes());
  KVT_CHECK(delay_ns >= 0);
  v1::Dep* dep = node(on_behalf).add_deps();
  dep->set_node(on);
  dep->set_kind(kind);
  dep->set_delay_ns(delay_ns);
  dep->set_at_output_token(at_output_token);
}

// A block's id stands for all content up to its end. While everything so far comes from shared tables, the id
// must be the same in every session: it is the hash of the pieces that have begun, with the block's number in
// its low bits, so that neighbouring blocks have neighbouring ids and the key stays short.
void SessionBuilder::walk(const Piece& piece, KeyState* state) {
  state->all_shared = state->all_shared && piece.table != 0;
  if (state->all_shared) state->shared_begun = chain(state->shared_begun ^ state->content, piece, 0, 0);
  for (uint32_t at = 0; at < piece.kept;) {
    const uint32_t to = std::min(piece.kept, at + (key_block_tokens_ - state->filled));
    state->content = chain(state->content, piece, at, to);
    state->filled += to - at;
    at = to;
    if (state->filled < key_block_tokens_) break;
    state->filled = 0;
    if (state->all_shared) {
      KVT_CHECK(state->block < (int64_t{1} << kSharedBlockBits));
      const auto base =
          static_cast<int64_t>(state->shared_begun >> (kSharedBlockBits + 3));  // below kBlockIdMax
      append_id(&key_runs_, (base << kSharedBlockBits) + state->block, v1::SCOPE_DATASET);
    } else {
      const auto next = static_cast<int64_t>(block_ids_.size()) + 1;
      append_id(&key_runs_, block_ids_.try_emplace(state->content, next).first->second, v1::SCOPE_SESSION);
    }
    ++state->block;
  }
}

v1::BlockKey SessionBuilder::key_of(const std::vector<Piece>& pieces) {
  const auto same = std::mismatch(pieces.begin(), pieces.end(), key_pieces_.begin(), key_pieces_.end()).first;
  const auto common = static_cast<size_t>(same - pieces.begin());
  KeyState state = common == 0 ? KeyState{} : key_states_[common - 1];
  key_pieces_.resize(common);
  key_states_.resize(common);
  key_runs_.resize(state.runs);
  if (state.runs > 0) key_runs_.back().count = state.last_count;
  for (size_t i = common; i < pieces.size(); ++i) {
    walk(pieces[i], &state);
    state.runs = key_runs_.size();
    state.last_count = key_runs_.empty() ? 0 : key_runs_.back().count;
    key_pieces_.push_back(pieces[i]);
    key_states_.push_back(state);
  }
  v1::BlockKey key;
  encode_key(key_runs_, v1::SCOPE_SESSION, &key);
  return key;
}

v1::Session SessionBuilder::take() {
  KVT_CHECK(session_.agents_size() > 0 && session_.nodes_size() > 0);
  block_ids_.clear();
  key_runs_.clear();
  key_pieces_.clear();
  key_states_.clear();
  return std::exchange(session_, {});
}

Piece AgentThread::say(SpanSpec spec) {
  spec.turn = turn;
  const Piece piece = session_->add_span(spec);
  history.add(piece);
  return piece;
}

uint32_t AgentThread::request(std::vector<SpanSpec> output, std::vector<Piece>* made) {
  std::vector<Piece> pieces;
  for (SpanSpec& spec : output) {
    spec.turn = turn;
    pieces.push_back(session_->add_span(spec));
  }
  last_request_ = session_->add_llm(agent_, history, pieces);
  for (const v1::Dep& dep : waits_) {
    session_->depend(last_request_, dep.node(), dep.kind(), dep.delay_ns(), dep.at_output_token());
  }
  waits_.clear();
  session_->llm(last_request_).set_think_ns(std::exchange(think_ns, 0));
  session_->llm(last_request_).set_turn(turn);
  history.add(pieces);
  wait_for(last_request_, v1::DEP_DATA);
  if (made != nullptr) *made = std::move(pieces);
  return last_request_;
}

uint32_t AgentThread::tool(uint32_t tool, const Piece& call_span, SpanSpec result, int64_t duration_ns,
                           uint32_t at_output_token) {
  v1::ToolCall request;
  request.set_tool(tool);
  request.set_duration_ns(duration_ns);
  if (call_span.tokens > 0) request.set_call_span(1 + call_span.index);
  if (result.tokens > 0) {
    result.role = v1::OBS;
    result.tool = tool;
    request.set_result_span(1 + say(result).index);
  }
  request.set_status(v1::OK);
  const uint32_t index = session_->add_tool(agent_, request);
  session_->depend(index, last_request_, v1::DEP_CONTROL, 0, at_output_token);
  wait_for(index, v1::DEP_DATA);
  return index;
}

void AgentThread::wait_for(uint32_t node, v1::DepKind kind, int64_t delay_ns, uint32_t at_output_token) {
  v1::Dep dep;
  dep.set_node(node);
  dep.set_kind(kind);
  dep.set_delay_ns(delay_ns);
  dep.set_at_output_token(at_output_token);
  waits_.push_back(std::move(dep));
}

}  // namespace kvtwin
