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
  for (uint32_t l = 0; l < llm_.layers; ++l) absorb(session, l, means.subspan(l * width, width));
}

void IntentMemory::absorb(SessionId session, uint32_t layer, std::span<const float> mean) {
  std::vector<std::vector<float>>& memory = memories_[session];
  memory.resize(llm_.layers);
  memory[layer].resize(mean.size(), 0.0f);
  if (spec_.intent_mode == kernels::IntentMode::kQuery) {
    kernels::intent_forget(llm_.head_dim, mean, memory[layer]);
  } else {
    kernels::intent_remember(spec_.intent.gamma, llm_.head_dim, mean, memory[layer]);
  }
}

const std::vector<std::vector<float>>* IntentMemory::find(SessionId session) const {
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

void IntentMemory::score(SessionId session, std::span<RankedHead> heads, const KvEntryStore& store) const {
  const RankedHead& any = heads[0];
  std::vector<uint32_t> candidates;
  for (uint32_t row = 0; row < any.rows(); ++row) {
    if (!std::binary_search(any.forced.begin(), any.forced.end(), row)) candidates.push_back(row);
  }
  const std::vector<std::vector<float>>* const memory = find(session);
  std::vector<float> scores(candidates.size(), 0.0f);
  // Without a memory (before the session's first query, or after it was dropped) all scores are equal, and
  // the newest tokens are retained.
  if (memory != nullptr) add_layers(*memory, heads, candidates, store, &scores);
  std::vector<float> added;
  if (spec_.kind == kernels::ScorerKind::kIntentResidual && memory != nullptr)
    added = corrections(*memory, heads, candidates, store);
  kernels::finish_scores(spec_, added,
                         kernels::packed_scores(scores, 1, static_cast<uint32_t>(scores.size())));
  for (RankedHead& head : heads) {
    KVT_CHECK(head.positions == any.positions);
    head.scores.assign(head.rows(), 0.0f);
    for (size_t i = 0; i < candidates.size(); ++i) head.scores[candidates[i]] = scores[i];
  }
}

// Adds the layers in their order, whatever the order in which they are computed.
void IntentMemory::add_layers(const std::vector<std::vector<float>>& memory,
                              std::span<const RankedHead> heads, std::span<const uint32_t> candidates,
                              const KvEntryStore& store, std::vector<float>* scores) const {
  const auto rows = static_cast<uint32_t>(candidates.size());
  std::vector<std::vector<float>> parts(llm_.layers);
  side_by_side(llm_.layers, [&](uint32_t l) {
    const std::vector<float> keys =
        keys_of(heads.subspan(size_t{l} * llm_.kv_heads, llm_.kv_heads), candidates, store);
    parts[l].assign(rows, 0.0f);
    kernels::intent_add_layer(spec_.intent, llm_.layers, memory[l], llm_.query_heads,
                              kernels::packed_heads(keys, llm_.kv_heads, rows, llm_.head_dim), parts[l]);
  });
  for (const std::vector<float>& part : parts) {
    for (uint32_t row = 0; row < rows; ++row) (*scores)[row] += part[row];
  }
}

// The residual's addition to the rule: gain times f.
std::vector<float> IntentMemory::corrections(const std::vector<std::vector<float>>& memory,
                                             std::span<const RankedHead> heads,
                                             std::span<const uint32_t> candidates,
                                             const KvEntryStore& store) const {
  const uint32_t dim = llm_.head_dim;
  const uint32_t first_span = heads[0].forced.empty() ? 0 : heads[0].forced.back() + 1;
  // The span is the last contiguous part of the forced rows.
  std::vector<uint32_t> span_rows;
  for (uint32_t row = first_span; row > 0; --row) {
    if (!std::binary_search(heads[0].forced.begin(), heads[0].forced.end(), row - 1)) break;
    span_rows.insert(span_rows.begin(), row - 1);
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
