// CompressedCache: passes of probe tokens, and the memory of prompts that have ended.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/cpu/compression/compressed_cache.h"
#include "engine/cpu/compression/probe_attention.h"

namespace kvtwin::cpu {

std::vector<uint32_t> repeat_instruction(const CompressedConfig& config, uint32_t vocab) {
  std::vector<uint32_t> out = config.repeat_instruction;
  const uint32_t tokens = config.core.policies.scorer_spec.repeat_instruction;
  for (uint32_t i = 0; config.repeat_instruction.empty() && i < tokens; ++i)
    out.push_back(static_cast<uint32_t>(draw({config.seed, 0x6b767a6970, i}) % vocab));
  KVT_CHECK(out.size() == tokens);
  return out;
}

// Inputs of the first layer, [tokens of the pass][hidden]: soft tokens, or a part of the context after an
// instruction and the end of the part before.
std::vector<float> CompressedCache::probe_inputs(const Work& work) const {
  const ScorerSpec& spec = config_.core.policies.scorer_spec;
  const RequestId request = work.rows.request;
  const ProbePass& pass = *work.pass;
  std::vector<uint32_t> tokens;
  if (pass.repeats()) {
    tokens = repeat_instruction(config_, llm_.vocab);
    for (uint32_t p = pass.repeated; p < pass.end; ++p) tokens.push_back(access_.token(request, p));
    return access_.forward->embed(tokens);
  }
  if (!config_.ask_response) return weights_.soft_tokens;
  // Inputs of the response; the last output token is never an input.
  const uint32_t asked = captured_queries(config_.core.policies.scorer, spec);
  const uint32_t last = access_.prompt_tokens(request) + std::max(access_.output_tokens(request), 2u) - 1;
  for (uint32_t p = pass.end; p < std::min(last, pass.end + asked); ++p)
    tokens.push_back(access_.token(request, p));
  return access_.forward->embed(tokens);
}

void CompressedCache::run_pass(const Work& work) {
  KvEntryScorer::State& captured = work.request->captured;
  std::vector<float> rows = probe_inputs(work);
  ProbeAttention attention(store_.get(), &work.request->kv_entries, &llm_, &rope_);
  attention.set_rows(static_cast<uint32_t>(rows.size() / llm_.hidden));
  access_.forward->pass(std::move(rows), &attention);
  if (!work.pass->repeats()) {
    captured.probes = std::move(attention.probes());
    return;
  }
  if (work.pass->first) captured.repeated.assign(size_t{llm_.layers} * llm_.kv_heads, {});
  const uint32_t sinks = config_.core.policies.budget_spec.sinks;
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    scorer_->score_repeated(layer, attention.probes()[layer], *work.pass, sinks, work.request->kv_entries,
                            &captured);
  }
}

// Adds the queries of an ended prompt to its session's memory, once, whether or not KV entries are dropped.
void CompressedCache::remember(const Work& work) {
  const bool at_end = work.compression != nullptr && !work.compression->before;
  const bool ended = work.rows.prompt && (work.rows.samples || at_end);
  // A query whose KV was reused whole was captured by the request that computed it.
  if (!ended || work.request->captured.queries[0].phases.empty()) return;
  const SessionId session = access_.session(work.rows.request);
  // If the session ended meanwhile, its memory was dropped: it then consists of this turn alone.
  const bool known = !remembered_.insert(work.rows.request).second && intents_->find(session) != nullptr;
  if (!known) intents_->remember(session, work.request->captured.queries, work.request->kv_entries.tokens());
}

}  // namespace kvtwin::cpu
