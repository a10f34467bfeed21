// RetrievedCache: InfiniGen. Tokens of the next layer are selected from this layer's input, with partial
// queries and keys (docs/design/methods/freekv.md#timelines).

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cpu/retrieval/retrieved_cache.h"

namespace kvtwin::cpu {
// Selects the same number of tokens for all heads.
void RetrievedCache::choose_tokens(uint32_t layer, const Row& row, const float* x) {
  ResidentLayer& own = row.request->layers[layer];
  std::vector<float> q(uint64_t{llm_.query_heads} * llm_.head_dim);
  projections_[layer - spec_.layers_dense].apply(rope_, row.position, x, q.data());
  if (options_.witness != nullptr) options_.witness->projected(row.id, layer, row.position, q.data());
  own.tokens =
      cpu::choose_tokens(spec_, llm_, *own.partial, q.data(), first_candidate() * memory_.page_tokens,
                         end_candidates(pages_of(row.kv_entry + 1)) * memory_.page_tokens,
                         shape_.selectable * memory_.page_tokens);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    if (options_.replace_tokens) options_.replace_tokens(head_at(row, layer, h), &own.tokens[h]);
    recall_tokens(layer, *row.request, h, own.tokens[h]);
    const uint32_t pages = pages_of(static_cast<uint32_t>(own.tokens[h].size()));  // rounded up
    recalls_[layer].blocking += pages, recalls_[layer].chosen += pages, ++recalls_[layer].heads;
    if (options_.witness != nullptr) options_.witness->recalls(head_at(row, layer, h), true, pages);
  }
}

// Copies tokens one by one into the slots between sinks and window.
void RetrievedCache::recall_tokens(uint32_t layer, const ResidentRequest& request, uint32_t head,
                                   std::span<const uint32_t> tokens) {
  const kernels::KvPages pages = kv_.layer(layer);
  const uint32_t slots = shape_.selectable * memory_.page_tokens;
  for (uint32_t i = 0; i < slots; ++i) {
    const uint32_t page = request.pages.at(shape_.sinks + i / memory_.page_tokens).page;
    const uint64_t at = pages.at(page, head, i % memory_.page_tokens);
    if (i >= tokens.size()) {
      if (!memory_.poison) return;
      std::fill_n(pages.keys + at, llm_.head_dim, std::nanf(""));
      std::fill_n(pages.values + at, llm_.head_dim, std::nanf(""));
      continue;
    }
    const kernels::HostPage from = host_copy(layer, request, tokens[i] / memory_.page_tokens);
    const uint32_t t = tokens[i] % memory_.page_tokens;
    std::copy_n(from.at(head, 0, t), llm_.head_dim, pages.keys + at);
    std::copy_n(from.at(head, 1, t), llm_.head_dim, pages.values + at);
    if (options_.witness != nullptr) options_.witness->wrote(page, layer, head);
  }
}

void RetrievedCache::read_tokens(uint32_t layer, const Row& row, const float* q, float* out) {
  const ResidentRequest& request = *row.request;
  const uint32_t end = row.kv_entry + 1, page_tokens = memory_.page_tokens;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const std::vector<uint32_t>& tokens = request.layers[layer].tokens.at(h);
    Reading reading;
    for (uint32_t page = 0; page < shape_.sinks; ++page) append_page(request, page, page, end, &reading);
    const auto count = static_cast<uint32_t>(tokens.size());
    for (uint32_t i = 0; i < count; i += page_tokens) {
      const uint32_t page = request.pages.at(shape_.sinks + i / page_tokens).page;
      reading.runs.push_back({page, 0, std::min(page_tokens, count - i)});
    }
    reading.positions.insert(reading.positions.end(), tokens.begin(), tokens.end());
    for (uint32_t page = pages_of(end) - shape_.window; page < pages_of(end); ++page)
      append_page(request, page, shape_.slot_of(page), end, &reading);
    read(layer, row, h, reading, false, q, out);
  }
}

}  // namespace kvtwin::cpu
