// CompressedCache: additional passes at the end of a prompt, for scorers that use probe tokens.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/cpu/compression/compressed_cache.h"
#include "engine/cpu/compression/probe_pass.h"

namespace kvtwin::cpu {

void CompressedCache::run_probes(const Work& work) {
  if (config_.score.scorer->source == kernels::ScoreSource::kProbes) ask_judges(work);
  if (config_.score.scorer->source == kernels::ScoreSource::kRepeats) repeat_context(work);
}

void CompressedCache::ask_judges(const Work& work) {
  const uint32_t end = work.compression->end, asked = probe_tokens();
  std::vector<float> rows = weights_.soft_tokens;
  if (config_.ask_response) {
    // Inputs of the response; the last output token is never an input.
    const uint32_t prompt = access_.prompt_tokens(work.rows.request),
                   output = access_.output_tokens(work.rows.request);
    const uint32_t last = prompt + std::max(output, 2u) - 1;
    std::vector<uint32_t> tokens;
    for (uint32_t p = end; p < std::min(last, end + asked); ++p)
      tokens.push_back(access_.token(work.rows.request, p));
    rows = access_.forward->embed(tokens);
  }
  ProbePass pass(store_.get(), &work.request->kv_entries, &llm_, &rope_);
  pass.set_rows(static_cast<uint32_t>(rows.size() / llm_.hidden));
  access_.forward->pass(std::move(rows), &pass);
  work.request->captured.probes = std::move(pass.probes());
}

// Passes each chunk with an instruction before it (drawn ids, because the models have no trained one) and the
// end of the chunk before.
void CompressedCache::repeat_context(const Work& work) {
  const ScorerSpec& spec = config_.core.policies.scorer_spec;
  const uint32_t begin = std::min(config_.core.policies.budget_spec.sinks, work.compression->end);
  std::vector<uint32_t> instruction(spec.repeat_instruction);
  for (uint32_t i = 0; i < instruction.size(); ++i)
    instruction[i] = static_cast<uint32_t>(draw({config_.seed, 0x6b767a6970, i}) % llm_.vocab);
  work.request->captured.repeated.assign(size_t{llm_.layers} * llm_.kv_heads, {});
  for (const kernels::RepeatChunk& chunk :
       kernels::repeat_chunks(begin, work.compression->end, spec.repeat_tokens, spec.repeat_tail)) {
    std::vector<uint32_t> tokens = instruction;
    for (uint32_t p = chunk.tail_begin; p < chunk.end; ++p)
      tokens.push_back(access_.token(work.rows.request, p));
    ProbePass pass(store_.get(), &work.request->kv_entries, &llm_, &rope_);
    pass.set_rows(static_cast<uint32_t>(tokens.size()));
    access_.forward->pass(access_.forward->embed(tokens), &pass);
    for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
      scorer_->score_repeated(layer, pass.probes()[layer], chunk, begin, work.request->kv_entries,
                              &work.request->captured);
    }
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

uint32_t CompressedCache::probe_tokens() const {
  return captured_queries(config_.core.policies.scorer, config_.core.policies.scorer_spec);
}

}  // namespace kvtwin::cpu
