#include "engine/cpu/compression/intent_memory.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/common/side_by_side.h"

namespace kvtwin::cpu {

using kernels::HeadsView;

void IntentMemory::remember(SessionId session, std::span<const Queries> queries, uint32_t tokens) {
  const uint32_t dim = llm_.head_dim;
  const size_t width = size_t{llm_.query_heads} * dim;
  std::vector<float> mean(width);
  begin_turn(session);
  for (uint32_t l = 0; l < llm_.layers; ++l) {
    const auto rows = static_cast<uint32_t>(queries[l].phases.size());
    const HeadsView q{queries[l].rows.data(), llm_.query_heads, rows, dim, dim, width, {}};
    if (spec_.intent.memory_pre_rope) {
      kernels::intent_query_pre_rope({rope_.inverse, rope_.scale}, q, queries[l].phases, tokens, mean);
    } else {
      kernels::intent_query(q, mean);
    }
    absorb(session, l, mean);
  }
}

void IntentMemory::remember_means(SessionId session, std::span<const float> means) {
  const size_t width = size_t{llm_.query_heads} * llm_.head_dim;
  KVT_CHECK(!spec_.intent.memory_pre_rope && means.size() == llm_.layers * width);
  begin_turn(session);
  for (uint32_t l = 0; l < llm_.layers; ++l) absorb(session, l, means.subspan(l * width, width));
}

void IntentMemory::begin_turn(SessionId session) {
  std::vector<ByLayer>& turns = memories_[session];
  if (!turns.empty() && !keeps_turns()) return;
  if (turns.size() == kernels::kIntentTurnsMax) turns.erase(turns.begin());
  const size_t width = size_t{llm_.query_heads} * llm_.head_dim;
  turns.emplace_back(llm_.layers, std::vector<float>(width, 0.0f));
}

void IntentMemory::absorb(SessionId session, uint32_t layer, std::span<const float> mean) {
  std::vector<float>& memory = memories_[session].back()[layer];
  if (spec_.intent_mode == kernels::IntentMode::kQuery || keeps_turns()) {
    kernels::intent_forget(llm_.head_dim, mean, memory);
  } else {
    kernels::intent_remember(spec_.intent, llm_.head_dim, mean, memory);
  }
}

const std::vector<IntentMemory::ByLayer>* IntentMemory::find(SessionId session) const {
  const auto found = memories_.find(session);
  return found == memories_.end() ? nullptr : &found->second;
}

namespace {

// Copies the keys of `rows` of a layer's heads to [heads][rows][dim].
std::vector<float> keys_of(std::span<const RankedHead> of_layer, std::span<const uint32_t> rows,
                           const KvEntryStore& store) {
  std::vector<float> out;
  std::vector<Place> places;
  for (const RankedHead& head : of_layer) {
    places.clear();
    for (const uint32_t row : rows) places.push_back(head.places[row]);
    store.keys(head.head, places, &out);
  }
  return out;
}

}  // namespace

void IntentMemory::score(SessionId session, TokenRange query, std::span<RankedHead> heads,
                         const KvEntryStore& store) const {
  const RankedHead& any = heads[0];
  std::vector<uint32_t> candidates;
  for (uint32_t row = 0; row < any.rows(); ++row) {
    if (!std::binary_search(any.forced.begin(), any.forced.end(), row)) candidates.push_back(row);
  }
  const std::vector<ByLayer>* const turns = find(session);
  std::vector<float> scores(candidates.size(), 0.0f), added;
  // Without a memory (before the session's first query, or after it was dropped) all scores are equal, and
  // the newest tokens are retained.
  if (turns != nullptr) scores = best_of_turns(*turns, heads, candidates, store);
  if (spec_.scorer->weights == kernels::TrainedWeights::kResidual && turns != nullptr)
    added = corrections(turns->back(), query, heads, candidates, store);
  kernels::finish_scores(spec_, added,
                         kernels::packed_scores(scores, 1, static_cast<uint32_t>(scores.size())));
  for (RankedHead& head : heads) {
    KVT_CHECK(head.positions == any.positions);
    head.scores.assign(head.rows(), 0.0f);
    for (size_t i = 0; i < candidates.size(); ++i) head.scores[candidates[i]] = scores[i];
  }
}

// Adds the layers of each turn in their order, whatever the order in which they are computed.
std::vector<float> IntentMemory::best_of_turns(const std::vector<ByLayer>& turns,
                                               std::span<const RankedHead> heads,
                                               std::span<const uint32_t> candidates,
                                               const KvEntryStore& store) const {
  const auto rows = static_cast<uint32_t>(candidates.size());
  std::vector<std::vector<float>> parts(size_t{llm_.layers} * turns.size());
  side_by_side(llm_.layers, [&](uint32_t l) {
    const std::vector<float> keys =
        keys_of(heads.subspan(size_t{l} * llm_.kv_heads, llm_.kv_heads), candidates, store);
    for (size_t turn = 0; turn < turns.size(); ++turn) {
      std::vector<float>& part = parts[turn * llm_.layers + l];
      part.assign(rows, 0.0f);
      kernels::intent_add_layer(spec_.intent, llm_.layers, turns[turn][l], llm_.query_heads,
                                kernels::packed_heads(keys, llm_.kv_heads, rows, llm_.head_dim), part);
    }
  });
  std::vector<float> best(rows, 0.0f), one(rows);
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    std::fill(one.begin(), one.end(), 0.0f);
    for (uint32_t l = 0; l < llm_.layers; ++l) {
      const std::vector<float>& part = parts[turn * llm_.layers + l];
      for (uint32_t row = 0; row < rows; ++row) one[row] += part[row];
    }
    kernels::intent_best_of_turns(factor(turn, turns.size()), one, best);
  }
  return best;
}

// The residual's addition to the rule: gain times f.
std::vector<float> IntentMemory::corrections(const ByLayer& memory, TokenRange query,
                                             std::span<const RankedHead> heads,
                                             std::span<const uint32_t> candidates,
                                             const KvEntryStore& store) const {
  const uint32_t dim = llm_.head_dim;
  std::vector<uint32_t> span_rows;
  for (uint32_t row = 0; row < heads[0].rows(); ++row) {
    if (heads[0].positions[row] >= query.begin && heads[0].positions[row] < query.end)
      span_rows.push_back(row);
  }
  std::vector<float> kbar(candidates.size() * dim, 0.0f), span(span_rows.size() * dim, 0.0f), mbar(dim, 0.0f);
  const auto view = [&](const std::vector<float>& keys, size_t rows) {
    return kernels::packed_heads(keys, llm_.kv_heads, static_cast<uint32_t>(rows), dim);
  };
  for (uint32_t l = 0; l < llm_.layers; ++l) {
    const std::span<const RankedHead> of_layer = heads.subspan(size_t{l} * llm_.kv_heads, llm_.kv_heads);
    kernels::intent_add_keys(llm_.layers, view(keys_of(of_layer, candidates, store), candidates.size()),
                             kbar);
    kernels::intent_add_keys(llm_.layers, view(keys_of(of_layer, span_rows, store), span_rows.size()), span);
    kernels::intent_add_memory(llm_.layers, llm_.query_heads, memory[l], mbar);
  }
  std::vector<float> f(candidates.size(), 0.0f), out(candidates.size(), 0.0f);
  kernels::intent_corrections(weights_.residual, kbar, mbar, span, f);
  kernels::intent_correct(weights_.residual, f, out);
  return out;
}

}  // namespace kvtwin::cpu
