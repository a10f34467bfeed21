// ReuseCounter computes the reuse of an unlimited prefix cache over a trace.
//
// It counts tokens with known identity by first appearance in a prompt: block ids where there are any, else
// chained hashes of 16 token ids, else chained spans. `in_session` compares within sessions, `in_trace`
// across sessions as far as scopes allow. Outputs count when a prompt repeats them.

#ifndef KVTWIN_TRACES_INSPECT_REUSE_H_
#define KVTWIN_TRACES_INSPECT_REUSE_H_

#include <cstdint>
#include <map>
#include <unordered_set>

#include "traces/format/block_key.h"

namespace kvtwin {

struct Reuse {
  uint64_t identified_tokens = 0;  // of all prompts, in whole units
  uint64_t new_in_session_tokens = 0;
  uint64_t new_in_trace_tokens = 0;
  double in_session() const { return fraction(new_in_session_tokens); }
  double in_trace() const { return fraction(new_in_trace_tokens); }

 private:
  double fraction(uint64_t fresh) const {
    return identified_tokens == 0 ? 0.0
                                  : 1.0 - static_cast<double>(fresh) / static_cast<double>(identified_tokens);
  }
};

class ReuseCounter {
 public:
  void header(const v1::TraceHeader& header) { block_tokens_ = header.block_tokens(); }
  void shared_spans(const v1::SharedSpanTable& table) { tables_[table.table()] = table; }
  void session(const v1::Session& session);
  const Reuse& result() const { return result_; }

 private:
  void keyed(const IdRuns& runs);
  void spans(const v1::Session& session, const v1::LlmRequest& request);
  void unit(uint64_t hash, bool beyond_session, uint32_t tokens);

  uint32_t block_tokens_ = 0;
  uint64_t session_number_ = 0;
  std::map<uint32_t, v1::SharedSpanTable> tables_;
  std::map<v1::Scope, IdSet> session_ids_, trace_ids_;
  std::unordered_set<uint64_t> session_hashes_, trace_hashes_;  // for look-up only, never iterated
  Reuse result_;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_INSPECT_REUSE_H_
