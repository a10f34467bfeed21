#include "engine/kv/managers/compressions.h"

#include <algorithm>

namespace kvtwin {

bool Compressions::is_due(const PlanEntry& entry, const LiveEntries& live, CompressionState* state,
                          RequestProgress* progress) const {
  const uint32_t tokens = progress->computed;
  const bool due = may_drop(entry, live, *state, tokens);
  const bool ends_prompt = tokens >= state->fill && state->due;
  if (!ends_prompt && !retention_.by_chunk()) return due;
  if (due && entry.kind != EntryKind::kProbe) progress->passes_left = retention_.passes().count(tokens);
  if (ends_prompt) state->due = progress->passes_left > 0;
  return due && progress->passes_left == 0;
}

// Whether there is something to drop at the end or the beginning of the entry, passes of probe tokens aside.
bool Compressions::may_drop(const PlanEntry& entry, const LiveEntries& live, const CompressionState& state,
                            uint32_t tokens) const {
  if (retention_.at_turn_start())
    return entry.first && retention_.can_drop(entry.context, live.before, state.spans);
  if (retention_.by_chunk()) {
    const bool of_prompt = entry.kind == EntryKind::kProbe || entry.context < state.fill;
    return of_prompt && (retention_.staged() || retention_.ranked(tokens) > 0);
  }
  if (state.due && tokens >= state.fill) {
    return retention_.at_prompt_end() && retention_.can_drop(tokens, live.after, state.spans);
  }
  if (state.due || !retention_.at_decode()) return false;
  return live.longest >= retention_.decode_limit(tokens);
}

uint32_t Compressions::plan(uint32_t entry, uint32_t tokens, CompressionState* state, Launch* launch) const {
  const uint32_t end = retention_.at_turn_start() ? launch->entries[entry].context : tokens;
  const uint32_t ranked_before = retention_.by_chunk() ? retention_.ranked(state->ranked) : 0;
  Compression c;
  c.entry = entry;
  c.begin = ranked_before > 0 ? state->ranked - retention_.window() : 0;
  c.end = end;
  c.staged = retention_.staged();
  c.before = retention_.at_turn_start();
  const ForcedTokens forced = retention_.forced(state->spans, end);
  const TokenRange newest{std::max(forced.newest.begin, c.begin), forced.newest.end};
  c.query = forced.query;
  const size_t forced_before = launch->forced.size(), keep_before = launch->keep.size();
  if (c.begin < forced.prefix) launch->forced.push_back({c.begin, forced.prefix});
  if (!newest.empty()) launch->forced.push_back({newest.begin, newest.end});
  if (retention_.known()) {
    for (uint32_t g = 0; g < retention_.tables(); ++g) {
      const uint32_t locked = retention_.by_chunk() ? retention_.quota(g, ranked_before) : 0;
      launch->keep.push_back(retention_.quota(g, forced, end - forced.total()) - locked);
    }
  }
  // The vectors may still move: Launch::point_compressions() sets the spans.
  c.forced = {launch->forced.data(), launch->forced.size() - forced_before};
  c.keep = {launch->keep.data(), launch->keep.size() - keep_before};
  launch->compressions.push_back(c);
  launch->attempts.push_back(state->attempt);
  state->ranked = end;
  return end;
}

uint32_t Compressions::steps_left(uint32_t tokens, uint32_t longest) const {
  if (!retention_.at_decode()) return UINT32_MAX;
  const uint32_t limit = retention_.decode_limit(tokens);
  return longest >= limit ? 1 : limit - longest;
}

}  // namespace kvtwin
