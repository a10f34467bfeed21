// Gives WEKA's prompts spans with roles, and its tool and system prompts an identity that sessions can share.
//
// WEKA records sizes and block ids, but no roles. A prompt is read as: the part of the earlier prompt that it
// continues (all of it, if that prompt's ids are a prefix of its own; else as far as the ids agree), then
// that request's output if it fits, then the new part: tool results or user text. Sizes are DERIVED; the
// split of an output over its types is SYNTHESISED, evenly.

#ifndef KVTWIN_TRACES_IMPORTERS_WEKA_SPANS_H_
#define KVTWIN_TRACES_IMPORTERS_WEKA_SPANS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "traces/importers/weka.h"

namespace kvtwin {

// The most span runs of all prompts of one session; real sessions have 0.02 million.
constexpr uint64_t kWekaRunsMax = 2u << 20;

struct WekaKeyedRequest {
  int node = 0;
  const IdRuns* ids = nullptr;
  std::string family;  // "", or the kind of sub-agent: those that may share a tool and system prompt
  WekaPrefix prefix;
};

class WekaSpans {
 public:
  // `session` outlives this, and only this adds spans to it.
  WekaSpans(v1::Session* session, uint32_t block_tokens) : session_(*session), block_tokens_(block_tokens) {}

  // Fills prompt and output of `request`, whose turn is set. `last`: node of the agent's previous request, or
  // -1. Returns whether the output of that request is part of this prompt.
  bool add(const WekaRequest& source, const std::vector<WekaKeyedRequest>& before, int last,
           const WekaPrefix& prefix, v1::LlmRequest* request);
  bool good() const { return runs_ <= kWekaRunsMax; }

 private:
  using Runs = google::protobuf::RepeatedPtrField<v1::SpanRun>;

  void add_span(v1::Role role, uint64_t tokens, uint32_t turn, Runs* runs);
  void add_output(const WekaRequest& source, uint32_t turn, Runs* runs);
  uint64_t append_cut(const Runs& source, uint64_t tokens, Runs* runs) const;
  // Appends the part of a request's output that fits; reasoning only if all fits. Returns the tokens
  // appended.
  uint64_t append_output(const v1::LlmRequest& request, uint64_t room, Runs* runs) const;

  v1::Session& session_;
  const uint32_t block_tokens_;
  std::vector<uint64_t> before_{0};  // tokens before each span of the session, and in total
  uint64_t runs_ = 0;
};

// Renames the block ids of tool and system prompts so that sessions share them, according to `sharing`.
void share_weka_prefixes(const std::vector<WekaKeyedRequest>& requests, PrefixSharing sharing,
                         const WekaTrace& trace, v1::Session* session);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_IMPORTERS_WEKA_SPANS_H_
