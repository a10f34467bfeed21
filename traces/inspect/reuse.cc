#include "traces/inspect/reuse.h"

#include "engine/base/prng.h"

namespace kvtwin {
namespace {

constexpr uint32_t kUnitTokens = 16;

}  // namespace

void ReuseCounter::session(const v1::Session& session) {
  ++session_number_;
  session_ids_.clear();
  session_hashes_.clear();
  for (const v1::Node& node : session.nodes()) {
    if (!node.has_llm()) continue;
    if (node.llm().has_prompt_key()) {
      if (const auto runs = decode_key(node.llm().prompt_key())) keyed(*runs);
    } else {
      spans(session, node.llm());
    }
  }
}

void ReuseCounter::keyed(const IdRuns& runs) {
  for (const IdRun& run : runs) {
    result_.identified_tokens += uint64_t{run.count} * block_tokens_;
    if (run.scope == v1::SCOPE_NONE) {
      result_.new_in_session_tokens += uint64_t{run.count} * block_tokens_;
      result_.new_in_trace_tokens += uint64_t{run.count} * block_tokens_;
      continue;
    }
    const uint64_t fresh = session_ids_[run.scope].insert(run.first, run.count);
    result_.new_in_session_tokens += fresh * block_tokens_;
    const bool beyond = run.scope != v1::SCOPE_SESSION;
    const uint64_t fresh_in_trace = beyond ? trace_ids_[run.scope].insert(run.first, run.count) : fresh;
    result_.new_in_trace_tokens += fresh_in_trace * block_tokens_;
  }
}

void ReuseCounter::unit(uint64_t hash, bool beyond_session, uint32_t tokens) {
  result_.identified_tokens += tokens;
  const bool fresh = session_hashes_.insert(hash).second;
  if (fresh) result_.new_in_session_tokens += tokens;
  const bool fresh_in_trace = beyond_session ? trace_hashes_.insert(hash).second : fresh;
  if (fresh_in_trace) result_.new_in_trace_tokens += tokens;
}

void ReuseCounter::spans(const v1::Session& session, const v1::LlmRequest& request) {
  uint64_t chain = 0;    // hash of everything before
  bool beyond = true;    // everything so far is comparable beyond the session
  uint32_t in_unit = 0;  // token ids since the last whole unit
  for (const v1::SpanRun& run : request.prompt()) {
    const auto table = tables_.find(run.table());
    for (uint32_t i = 0; i < run.count(); ++i) {
      const auto index = static_cast<int>(run.first() + i);
      if (run.table() != 0 && table == tables_.end()) return;
      const v1::Span& span = run.table() == 0 ? session.spans(index) : table->second.spans(index);
      const bool last = i + 1 == run.count();
      const uint32_t tokens = last && run.keep_tokens() != 0 ? run.keep_tokens() : span.tokens();
      if (span.token_ids_size() != 0) {
        beyond = beyond && (span.scope() == v1::SCOPE_GLOBAL || span.scope() == v1::SCOPE_DATASET);
        for (uint32_t t = 0; t < tokens; ++t) {
          chain = draw({chain, span.token_ids(static_cast<int>(t))});
          if (++in_unit == kUnitTokens) unit(chain, beyond, kUnitTokens), in_unit = 0;
        }
        continue;
      }
      in_unit = 0;
      if (!span.content_hash().empty()) {
        for (const char byte : span.content_hash()) chain = mix64(chain ^ static_cast<uint8_t>(byte)) + 1;
        beyond = beyond && span.scope() >= v1::SCOPE_DATASET;
      } else {
        const bool own = run.table() == 0;
        chain = draw({chain, own ? session_number_ : 0, run.table(), run.first() + i});
        beyond = beyond && !own;
      }
      // A span that is used in part is the start of the whole one, whose tokens were counted with it.
      unit(chain, beyond, tokens);
    }
  }
}

}  // namespace kvtwin
