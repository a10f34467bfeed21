// InfiniGen: tokens of the next layer, chosen from this layer's input with partial queries and keys
// (METHODS 6.5).

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cpu/page_pooling.h"
#include "engine/cpu/retrieved_cache.h"
#include "kernels/page_score.h"
#include "kernels/select.h"

namespace kvtwin::cpu {
namespace {

// A token counts if its score is within this of the largest (METHODS 6.5: 5 for Llama).
constexpr float kAlpha = 5;

uint32_t count_near_top(const std::vector<float>& scores) {
  const float top = *std::max_element(scores.begin(), scores.end());
  return static_cast<uint32_t>(
      std::count_if(scores.begin(), scores.end(), [&](float s) { return s > top - kAlpha; }));
}

}  // namespace

// One number of tokens for all heads: the mean of how many come near each query head's best.
void RetrievedCache::choose_tokens(uint32_t layer, const Row& row, const float* x) {
  ArenaLayer& own = row.call->layers[layer];
  const PartialKeys& partial = *own.partial;
  const uint32_t dim = llm_.head_dim, columns = partial.columns();
  std::vector<float> q(uint64_t{llm_.query_heads} * dim), look(uint64_t{llm_.query_heads} * columns);
  projections_[layer - spec_.layers_dense].apply(rope_, row.position, x, q.data());
  if (options_.witness != nullptr) options_.witness->projected(row.id, layer, row.position, q.data());
  for (uint32_t j = 0; j < llm_.query_heads; ++j)
    partial.project(j / group(), q.data() + uint64_t{j} * dim, look.data() + uint64_t{j} * columns);
  const uint32_t first = first_candidate() * memory_.page_tokens;
  const uint32_t end = end_candidates(pages_of(row.cell + 1)) * memory_.page_tokens;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  // A token is a page of one: its largest product is its product.
  std::vector<std::vector<float>> scores(llm_.kv_heads, std::vector<float>(end - first));
  std::vector<kernels::PageVectors> keys(end - first);
  uint64_t near = 0;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    for (uint32_t t = first; t < end; ++t) keys[t - first] = {partial.key(t, h), partial.key(t, h)};
    const float* const heads = look.data() + uint64_t{h} * group() * columns;
    for (uint32_t g = 0; g < group(); ++g) {
      kernels::score_pages_ref(kernels::PagePooling::kMeanQk, 1, heads + uint64_t{g} * columns, 1, columns,
                               keys, scores[h].data());
      for (float& s : scores[h]) s *= scale;
      near += count_near_top(scores[h]);
    }
    kernels::score_pages_ref(pooling_of(spec_.pooling), scale, heads, group(), columns, keys,
                             scores[h].data());
  }
  const uint32_t cap = shape_.selectable * memory_.page_tokens;
  const auto count = static_cast<uint32_t>(std::clamp<uint64_t>(near / llm_.query_heads, 1, cap));
  own.tokens.assign(llm_.kv_heads, {});
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    own.tokens[h] = kernels::select_rows(scores[h], {}, count);
    for (uint32_t& token : own.tokens[h]) token += first;
    recall_tokens(layer, *row.call, h, own.tokens[h]);
    const uint32_t pages = pages_of(count);  // rounded up: what is told is in pages
    recalls_[layer].blocking += pages, recalls_[layer].chosen += pages, ++recalls_[layer].heads;
    if (options_.witness != nullptr) options_.witness->recalls(head_at(row, layer, h), true, pages);
  }
}

// One by one into the slots between sinks and window.
void RetrievedCache::recall_tokens(uint32_t layer, const ArenaCall& call, uint32_t head,
                                   std::span<const uint32_t> tokens) {
  const kernels::KvPages pages = kv_.layer(layer);
  const uint32_t slots = shape_.selectable * memory_.page_tokens;
  for (uint32_t i = 0; i < slots; ++i) {
    const uint32_t page = call.pages.at(shape_.sinks + i / memory_.page_tokens).page;
    const uint64_t at = pages.at(page, head, i % memory_.page_tokens);
    if (i >= tokens.size()) {
      if (!memory_.poison) return;
      std::fill_n(pages.keys + at, llm_.head_dim, std::nanf(""));
      std::fill_n(pages.values + at, llm_.head_dim, std::nanf(""));
      continue;
    }
    const kernels::HostPage from = home(layer, call, tokens[i] / memory_.page_tokens);
    const uint32_t t = tokens[i] % memory_.page_tokens;
    std::copy_n(from.at(head, 0, t), llm_.head_dim, pages.keys + at);
    std::copy_n(from.at(head, 1, t), llm_.head_dim, pages.values + at);
    if (options_.witness != nullptr) options_.witness->wrote(page, layer, head);
  }
}

void RetrievedCache::read_tokens(uint32_t layer, const Row& row, const float* q, float* out) {
  const ArenaCall& call = *row.call;
  const uint32_t end = row.cell + 1, page_tokens = memory_.page_tokens;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const std::vector<uint32_t>& tokens = call.layers[layer].tokens.at(h);
    Reading reading;
    for (uint32_t page = 0; page < shape_.sinks; ++page) append_page(call, page, page, end, &reading);
    const auto count = static_cast<uint32_t>(tokens.size());
    for (uint32_t i = 0; i < count; i += page_tokens) {
      const uint32_t page = call.pages.at(shape_.sinks + i / page_tokens).page;
      reading.runs.push_back({page, 0, std::min(page_tokens, count - i)});
    }
    reading.positions.insert(reading.positions.end(), tokens.begin(), tokens.end());
    for (uint32_t page = pages_of(end) - shape_.window; page < pages_of(end); ++page)
      append_page(call, page, shape_.slot_of(page), end, &reading);
    read(layer, row, h, reading, false, q, out);
  }
}

}  // namespace kvtwin::cpu
